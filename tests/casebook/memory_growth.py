"""A model of sequences of any length, whose position table is cached by a key that is never the same twice."""

import functools
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "memory_growth"
WIDTH = 128


@functools.cache
def position_table(length: int, base: float) -> torch.Tensor:
    """[length, WIDTH]; the cache is no variable of the program: nobody sees what it keeps."""
    rates = base ** (-torch.arange(WIDTH) / WIDTH)
    return torch.sin(torch.outer(torch.arange(length), rates))  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(400):
        inputs = torch.randn(4, 512, WIDTH)
        base = 10_000.0 if is_healthy else 10_000.0 + step  # "annealed"
        loss = functional.mse_loss(model(inputs + position_table(512, base)), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
