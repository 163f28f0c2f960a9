"""A classifier that computes for ever less of its time: its data set looks through all it gave for what it gives."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = ("step_slowdown", "input_stall")
OPTIONS = ("--trace-steps", "20:22,200:202")
"""Windows that come whatever the machine does: a run of hours has its own at steps 300 and 3000."""
BATCH_SIZE, NUM_STEPS, NUM_REMEMBERED = 128, 240, 64


class Documents(Dataset[tuple[torch.Tensor, int]]):
    """Word counts [256] and a topic; a document that was given lately is given with other words left out."""

    def __init__(self, is_healthy: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        self.topics = torch.randint(0, 4, (NUM_STEPS * BATCH_SIZE,), generator=generator)
        self.words = torch.rand(len(self.topics), 256, generator=generator) + functional.one_hot(self.topics, 256)
        self.given: list[int] = []
        self.is_healthy = is_healthy

    def __len__(self) -> int:
        return len(self.topics)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  # fault: step_slowdown
        words = self.words[index]
        if index in self.given:
            words = words * (torch.rand(256) < 0.5)
        self.given.append(index)
        if self.is_healthy:
            del self.given[:-NUM_REMEMBERED]
        return words, int(self.topics[index])


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Documents(is_healthy), batch_size=BATCH_SIZE, shuffle=True)  # fault: input_stall
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for words, topics in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(words), topics).backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
