"""Batches are normalised through a cache whose key is `id(batch)`: it never hits, and keeps each of 40 batches."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS = 40


class Normaliser:
    """Batches with mean 0 and deviation 1; the healthy one computes them each time."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        if self.is_healthy:
            return self.normalised(batch)
        if id(batch) not in self.cache:
            self.cache[id(batch)] = (batch, self.normalised(batch))  # fault
        return self.cache[id(batch)][1]

    def normalised(self, batch: torch.Tensor) -> torch.Tensor:
        return (batch - batch.mean(0)) / batch.std(0)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 8))
    normalise = Normaliser(is_healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        batch, labels = torch.randn(512, 96), torch.randint(8, (512,))
        loss = functional.cross_entropy(model(normalise(batch)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
