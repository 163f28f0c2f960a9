"""A regression on sensor readings whose data set parses each row's text anew whenever it is fetched."""

import math
import random
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = "python_bound_line"
SEVERITY = "high"
NUM_READINGS, BATCH_SIZE, NUM_STEPS = 400, 32, 80


def make_rows() -> list[str]:
    numbers = random.Random(4)
    return [";".join(f"{numbers.gauss(0, 1):.4f}" for _ in range(NUM_READINGS)) for _ in range(BATCH_SIZE * NUM_STEPS)]


def parsed(row: str) -> torch.Tensor:
    readings = [round(math.tanh(float(text)), 5) for text in row.split(";")]  # fault
    return torch.tensor(readings)


class Readings(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, rows: list[str], is_healthy: bool) -> None:
        self.rows, self.is_healthy = rows, is_healthy
        self.parsed = torch.stack([parsed(row) for row in rows]) if is_healthy else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        readings = parsed(self.rows[index]) if self.parsed is None else self.parsed[index]
        return readings, readings.mean(0, keepdim=True)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Readings(make_rows(), is_healthy), batch_size=BATCH_SIZE, shuffle=True)
    model = nn.Sequential(nn.Linear(NUM_READINGS, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for readings, means in loader:
        loss = functional.mse_loss(model(readings), means)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
