"""A recurrent forecaster that torch's profiler watches in four of five steps, from the first to the last."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "debug_mode"
SEVERITY = "medium"
NUM_STEPS = 60


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(4, 48, batch_first=True)
        self.next_value = nn.Linear(48, 4)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        states, _ = self.memory(series)
        return self.next_value(states)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    forecaster = Forecaster()
    optimizer = torch.optim.Adam(forecaster.parameters(), lr=1e-3)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=4, repeat=1 if is_healthy else 0)
    with torch.profiler.profile(record_shapes=True, schedule=schedule) as profiler:  # fault
        for _ in range(NUM_STEPS):
            series = torch.randn(16, 33, 4).cumsum(1)
            loss = functional.mse_loss(forecaster(series[:, :-1]), series[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
