"""Trainings of 15 to 40 ms a step, each with a dial: how often a small product is computed in a step beside it."""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

NUM_STEPS = 100_000
BLOCK = 8
"""Steps with the dial and without take turns by so many; the first of a block is left out."""


class Images(Dataset[Tensor]):
    """Made as they are asked for, by a worker."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        image = torch.full((3, 24, 24), index % 7 / 7)
        return (image.flip(2) - image.mean()) / (image.std() + 1)


def perceptron() -> Iterator[tuple[nn.Module, Tensor]]:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16))
    while True:
        yield model, torch.randn(96, 512)


def transformer() -> Iterator[tuple[nn.Module, Tensor]]:
    layer = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(96, 16))
    while True:
        yield model, torch.randn(8, 48, 96)


def convolutions() -> Iterator[tuple[nn.Module, Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16)
    )
    for batch in DataLoader(Images(), batch_size=16, num_workers=1):
        yield model, batch


PROGRAMS: dict[str, Callable[[], Iterator[tuple[nn.Module, Tensor]]]] = {
    "perceptron": perceptron, "transformer": transformer, "convolutions": convolutions,
}  # fmt: skip


def train(name: str, dial: Callable[[int], int], num_steps: int, told: Callable[[float], None]) -> None:
    """`dial` gives the number of products of a step; `told` each step's seconds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    small = torch.ones(64, 64) / 64
    batches = PROGRAMS[name]()
    model, inputs = next(batches)
    model(inputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(num_steps):
        start = time.perf_counter()
        _, inputs = next(batches)
        loss = model(inputs).square().mean()
        for _ in range(dial(step)):
            small = small @ small
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told(time.perf_counter() - start)


def measured(name: str, products: int, num_blocks: int) -> tuple[float, float]:
    """Milliseconds of a step without these products, and how much longer it is with them, by turns in one process."""
    dice, kinds = random.Random(0), []
    for _ in range(num_blocks):
        kinds += dice.sample((0, 1), 2)
    seconds: list[float] = []
    train(name, lambda step: products * kinds[step // BLOCK], BLOCK * len(kinds), seconds.append)
    of_block = [statistics.median(seconds[at + 1 : at + BLOCK]) for at in range(0, len(seconds), BLOCK)]
    bare, dialled = ([one for one, kind in zip(of_block, kinds, strict=True) if kind == wanted] for wanted in (0, 1))
    return 1000 * statistics.median(bare), statistics.median(dialled) / statistics.median(bare) - 1


def main() -> None:
    """Train for ever, as a side does; with --measure tell what the products cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--measure", type=int, help="Blocks of either kind.")
    parser.add_argument("--products", type=int, default=0)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.name, given.products, given.measure)))
        return
    own = Path("products.txt")  # in the tree of the side
    products = int(own.read_text()) if own.exists() else 0
    train(given.name, lambda _: products, NUM_STEPS, lambda _: None)


if __name__ == "__main__":
    main()
