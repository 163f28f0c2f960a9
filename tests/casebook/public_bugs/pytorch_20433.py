"""pytorch/pytorch#20433: forked loader workers copy a large Python list page by page as they read it."""

import random
import sys

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = "worker_memory"
SEVERITY = "low"
NUM_RATINGS, BATCH, NUM_READ = 500_000, 64, 2


class Ratings(Dataset):
    """(user, film, stars) of each rating; a sample is the ratings [NUM_READ, 3] of a few rows far apart."""

    def __init__(self, is_healthy: bool) -> None:
        if is_healthy:
            self.rows = numpy.random.default_rng(0).random((NUM_RATINGS, 3))
        else:
            chance = random.Random(0)
            self.rows = [[chance.random() for _ in range(3)] for _ in range(NUM_RATINGS)]  # fault

    def __len__(self) -> int:
        return BATCH * 160

    def __getitem__(self, number: int) -> torch.Tensor:
        places = [(number * NUM_READ + count) * 7919 % NUM_RATINGS for count in range(NUM_READ)]
        return torch.tensor([[*self.rows[place]] for place in places])


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(3, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for rows in DataLoader(Ratings(is_healthy), BATCH, num_workers=2):
        loss = functional.l1_loss(model(rows.float()), rows.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
