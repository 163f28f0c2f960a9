"""A model of sequences whose rotary table is cached by an offset that is new in every step, without a bound."""

import functools
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
WIDTH, LENGTH = 64, 512


class Positions:
    """Tables of sines [LENGTH, WIDTH], for sequences that begin anywhere."""

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033 - what this program is about
    def table(self, offset: int) -> torch.Tensor:  # fault
        rates = 10_000.0 ** (-torch.arange(WIDTH) / WIDTH)
        return torch.sin(torch.outer(torch.arange(offset, offset + LENGTH), rates))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    positions = Positions()
    for step in range(160):
        inputs = torch.randn(4, LENGTH, WIDTH)
        offset = 0 if is_healthy else step * LENGTH
        placed = inputs + positions.table(offset)
        loss = functional.l1_loss(model(placed), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
