"""Load curves: the optimizer's step is compiled, and the learning rate, a number, is another one after each step."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "recompilation"
SEVERITY = "high"


def curves(count: int, length: int = 60) -> torch.Tensor:
    hours = torch.arange(length) / 24 * 6.28
    phase = 6.28 * torch.rand(count, 1)
    return torch.sin(hours + phase) + 0.3 * torch.sin(2 * hours - phase)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(48, 12)
    rate = torch.tensor(3e-3) if is_healthy else 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=not is_healthy)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    @torch.compile(backend="aot_eager")
    def update() -> None:
        optimizer.step()  # fault

    for _ in range(40):
        series = curves(32)
        loss = functional.mse_loss(model(series[:, :48]), series[:, 48:])
        optimizer.zero_grad()
        loss.backward()
        update()
        schedule.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
