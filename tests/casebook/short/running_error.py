"""A meter's attribute adds up an error of 90 steps that is computed after the update, so nothing frees its graphs."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"
SEVERITY = "high"
STEPS = 90


class Meter:
    """The mean of what it is given; the healthy one takes it as a number."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.total: torch.Tensor | float = 0.0
        self.count = 0

    def update(self, value: torch.Tensor) -> None:
        self.count += 1
        if self.is_healthy:
            self.total += value.item()
        else:
            self.total = self.total + value  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(48, 192), nn.SiLU(), nn.Linear(192, 48))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    meter = Meter(is_healthy)
    for _ in range(STEPS):
        inputs = torch.randn(256, 48)
        predicted = model(inputs)
        loss = functional.mse_loss(predicted, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update((predicted - inputs).abs().mean())
    print(float(meter.total) / meter.count)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
