"""A tagger whose logging function keeps the words of every batch in a list that no one else can name."""

import random
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_host_memory"
NUM_SENTENCES, NUM_WORDS = 64, 48


def make_log(is_healthy: bool) -> Callable[[int, list[list[int]]], int]:
    words: list[list[str]] = []

    def log(step: int, sentences: list[list[int]]) -> int:
        if is_healthy:
            words.clear()
        words.append([f"step {step}: word {word}" for sentence in sentences for word in sentence])  # fault
        return len(words)

    return log


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    chance = random.Random(0)
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    log = make_log(is_healthy)
    for step in range(220):
        sentences = [[chance.randrange(1000) for _ in range(NUM_WORDS)] for _ in range(NUM_SENTENCES)]
        words = torch.tensor(sentences)
        loss = functional.cross_entropy(model(words).flatten(0, 1), words.flatten() % 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, sentences)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
