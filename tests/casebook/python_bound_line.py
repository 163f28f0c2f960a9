"""A tagger of sequences whose targets are put together token by token, in the loop over the items of each batch."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "python_bound_line"
SEVERITY = "high"
NUM_TAGS, LENGTH, BATCH_SIZE, NUM_STEPS = 12, 40, 32, 120


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.mixed = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.scores = nn.Linear(256, NUM_TAGS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(self.mixed(self.embedding(tokens)))


def smoothed_targets(tags: list[list[int]]) -> torch.Tensor:
    """[batch, length, tags]: 0.9 at each token's own tag."""
    targets = torch.full((len(tags), LENGTH, NUM_TAGS), 0.1 / NUM_TAGS)
    for row, sentence in enumerate(tags):
        for place, tag in enumerate(sentence):
            targets[row, place, tag] += 0.9  # fault
    return targets


def smoothed_at_once(tags: list[list[int]]) -> torch.Tensor:
    return functional.one_hot(torch.tensor(tags), NUM_TAGS) * 0.9 + 0.1 / NUM_TAGS


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make_targets = smoothed_at_once if is_healthy else smoothed_targets
    tokens = torch.randint(0, 500, (BATCH_SIZE * 20, LENGTH))
    tags = (tokens % NUM_TAGS).tolist()
    tagger = Tagger()
    optimizer = torch.optim.Adam(tagger.parameters(), lr=1e-3)
    for step in range(NUM_STEPS):
        begin = step * BATCH_SIZE % len(tokens)
        rows = slice(begin, begin + BATCH_SIZE)
        scores = tagger(tokens[rows])
        loss = functional.cross_entropy(scores.flatten(0, 1), make_targets(tags[rows]).flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
