"""A classifier that weighs each batch by how often its samples were seen, counting anew all that was ever seen."""

import collections
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "step_slowdown"


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    samples = TensorDataset(torch.randn(25_600, 128), torch.randint(0, 10, (25_600,)), torch.arange(25_600))
    seen: list[int] = []
    counts: collections.Counter[int] = collections.Counter()
    for inputs, labels, numbers in DataLoader(samples, batch_size=256):
        batch = numbers.tolist()
        if is_healthy:
            counts.update(batch)
        else:
            seen.extend(batch)
            counts = collections.Counter(seen)  # fault
        weights = torch.tensor([1 / counts[number] for number in batch])
        loss = (functional.cross_entropy(model(inputs), labels, reduction="none") * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
