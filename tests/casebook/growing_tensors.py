"""A classifier whose hard examples are kept to be looked at after training: every step adds some pictures."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"


class HardExamples:
    """The pictures that the model was least sure of; the healthy one keeps the latest of them alone."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.pictures: list[torch.Tensor] = []

    def collect(self, pictures: torch.Tensor, losses: torch.Tensor) -> None:
        hardest = losses.detach().topk(len(losses) // 4).indices
        if self.is_healthy:
            self.pictures = [pictures[hardest]]
        else:
            self.pictures.append(pictures[hardest])  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()
    )
    head = nn.Linear(16 * 7 * 7, 10)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    hard = HardExamples(is_healthy)
    for _ in range(400):
        pictures, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
        losses = functional.cross_entropy(head(model(pictures)), labels, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        hard.collect(pictures, losses)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
