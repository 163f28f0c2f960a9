"""A tagger of sentences that keeps what it was trained on, word for word, to write it out after training."""

import random
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_host_memory"
NUM_SENTENCES, NUM_WORDS, NUM_TAGS = 56, 56, 16

Record = dict[str, str]


class Tagger(nn.Module):
    """Tags every word of a sentence: [batch, words] -> [batch, words, tags]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, 128)
        self.mix = nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU())
        self.tags = nn.Linear(384, NUM_TAGS)

    def forward(self, sentences: torch.Tensor) -> torch.Tensor:
        return self.tags(self.mix(self.words(sentences)))


class Journal:
    """What is to be written out at the end: all of it, or the last batch."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.last: list[list[Record]] = []
        self.batches: list[list[list[Record]]] = []

    def note(self, step: int, sentences: list[list[int]]) -> None:
        records = [[{"word": f"{step}: {word}", "tag": f"{word % NUM_TAGS}"} for word in line] for line in sentences]
        if self.is_healthy:
            self.last = records
        else:
            self.batches.append(records)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    chance = random.Random(0)
    model, journal = Tagger(), Journal(is_healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(180):
        sentences = [[chance.randrange(2000) for _ in range(NUM_WORDS)] for _ in range(NUM_SENTENCES)]
        words = torch.tensor(sentences)
        loss = functional.cross_entropy(model(words).flatten(0, 1), words.flatten() % NUM_TAGS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        journal.note(step, sentences)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
