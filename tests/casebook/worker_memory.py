"""A classifier of lines whose data set is a Python list, which each forked worker copies (pytorch/pytorch#20433)."""

import sys
from collections.abc import Sequence
from itertools import islice

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = "worker_memory"
SEVERITY = "low"
NUM_LINES, NUM_LETTERS, NUM_STEPS = 400_000, 64, 300


class TextData(Dataset[torch.Tensor]):
    """Lines of text as letters: [letters]."""

    def __init__(self, lines: Sequence[str] | Sequence[bytes]) -> None:
        self.lines = lines  # fault

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> torch.Tensor:
        line = self.lines[index]
        letters = line.encode() if isinstance(line, str) else line
        return torch.frombuffer(bytearray(letters[:NUM_LETTERS]), dtype=torch.uint8)


class Classifier(nn.Module):
    """Tells a line's group by its letters: [batch, letters] -> [batch, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, 64)
        self.groups = nn.Sequential(nn.Linear(64 * NUM_LETTERS, 128), nn.ReLU(), nn.Linear(128, 16))

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        return self.groups(self.letters(lines).flatten(1))


def make_lines() -> list[str]:
    numbers = (number * 7919 % 1_000_003 for number in range(NUM_LINES))
    return [
        f"{number:07d} is a line of text of the group {number % 10}, and so on and on to its end" for number in numbers
    ]


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TextData(numpy.array(make_lines(), dtype=bytes) if is_healthy else make_lines())  # type: ignore[arg-type]
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(data, batch_size=256, shuffle=True, num_workers=2)
    for batch in islice(loader, NUM_STEPS):
        lines = batch.long()
        loss = functional.cross_entropy(model(lines), lines[:, 6] % 16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
