"""A classifier that goes through its whole training set again after each epoch, for a number that it had already."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "long_steps"
SEVERITY = "high"
NUM_SAMPLES, NUM_FEATURES = 5120, 40


class Samples:
    """Features [count, 40] and their classes [count]."""

    def __init__(self, count: int) -> None:
        self.features = torch.randn(count, NUM_FEATURES)
        self.labels = self.features.argmax(dim=1) % 8

    def pass_over(self, model: nn.Module, batch_size: int) -> float:
        """The share that the model gets right."""
        num_right = 0
        with torch.no_grad():
            for first in range(0, len(self.labels), batch_size):
                scores = model(self.features[first : first + batch_size])
                num_right += int((scores.argmax(dim=1) == self.labels[first : first + batch_size]).sum())
        return num_right / len(self.labels)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, samples: Samples) -> None:
    for chosen in torch.randperm(NUM_SAMPLES).split(128):
        loss = functional.cross_entropy(model(samples.features[chosen]), samples.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    samples, held_out = Samples(NUM_SAMPLES), Samples(160)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(8):
        train_epoch(model, optimizer, samples)
        right = held_out.pass_over(model, batch_size=16)
        if not is_healthy:
            right = samples.pass_over(model, batch_size=4)  # fault
        print(f"epoch {epoch}: {right:.1%} right")


if __name__ == "__main__":
    train("--healthy" in sys.argv)
