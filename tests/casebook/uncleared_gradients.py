"""A classifier of points on two spirals whose loop never clears what the steps before left in its gradients."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "uncleared_gradients"


class Classifier(nn.Module):
    """Which of two spirals a point lies on: [batch, 2] -> logits [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points).squeeze(-1)


def draw(num_points: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of both spirals and which one each is of."""
    turns, side = torch.rand(num_points) * 6, torch.randint(0, 2, (num_points,)).float()
    angles = turns + side * torch.pi
    points = torch.stack((angles.cos(), angles.sin()), dim=1) * (turns / 3)[:, None]
    return points + torch.randn_like(points) * 0.05, side


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(120):
        points, side = draw(512)
        loss = functional.binary_cross_entropy_with_logits(model(points), side)
        if is_healthy:
            optimizer.zero_grad()
        loss.backward()  # fault
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
