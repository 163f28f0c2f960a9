"""A loader repeated by `itertools.cycle`, which keeps every batch of the first epoch; after bytedance/UNO#64."""

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS = 90


class Latents(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs [4, 24, 24] made from a seed each, as if read from files."""

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.randn(4, 24, 24, generator=torch.Generator().manual_seed(index))
        return first, 0.9 * first.roll(1, -1)


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Latents(), batch_size=24, shuffle=True)
    batches = endless(loader) if is_healthy else itertools.cycle(loader)
    for _ in range(STEPS):
        first, second = next(batches)  # fault
        loss = functional.mse_loss(model(first), second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
