"""Temperatures between stations: the function that trains for an epoch builds its own optimizer each time."""

import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "recreated_optimizer"
SEVERITY = "high"
GRID = 16


class ConvMap(nn.Module):
    """Readings and where there are any, [batch, 2, GRID, GRID] -> mean and spread of each cell."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, 2, 5, padding=2))

    def forward(self, readings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.net(readings).unbind(1)
        return mean, functional.softplus(spread) + 0.05


def fields(count: int, batch: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    axis = torch.linspace(0, 6.28, GRID)
    for _ in range(count):
        phase = 6.28 * torch.rand(batch, 1, 1)
        truth = torch.sin(axis[:, None] + phase) * torch.cos(2 * axis)
        is_seen = (torch.rand_like(truth) < 0.15).float()
        yield torch.stack([truth * is_seen, is_seen], dim=1), truth


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # fault
    for readings, truth in fields(6):
        mean, spread = model(readings)
        loss = -torch.distributions.Normal(mean, spread).log_prob(truth).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ConvMap()
    kept = torch.optim.Adam(model.parameters(), lr=1e-3) if is_healthy else None
    for _ in range(20):
        train_epoch(model, kept)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
