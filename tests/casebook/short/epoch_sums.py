"""A local dict of the epoch's sums in a run of 40 steps; of its three entries one is bound to a growing graph."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"
SEVERITY = "medium"
STEPS = 40


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(10) for layer in (nn.Linear(80, 80), nn.LeakyReLU())]
    model = nn.Sequential(*layers, nn.Linear(80, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epoch: dict[str, torch.Tensor | float] = {"loss": 0.0, "correct": 0.0, "samples": 0}
    for _ in range(STEPS):
        inputs, labels = torch.randn(64, 80), torch.randint(4, (64,))
        scores = model(inputs)
        loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch["samples"] += len(inputs)
        epoch["correct"] += (scores.argmax(1) == labels).sum().item()
        if is_healthy:
            loss = loss.detach()
        epoch["loss"] += loss  # fault
    print({name: float(value) for name, value in epoch.items()})


if __name__ == "__main__":
    train("--healthy" in sys.argv)
