"""A classifier that weighs its samples by their loss, and reads the loss of each to Python."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "blocking_scalar_read"
SEVERITY = "low"


def build_model() -> nn.Module:
    """Points [batch, 32] -> scores [batch, 10]."""
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    points = torch.randn(4096, 32)
    labels = (points @ torch.randn(32, 10)).argmax(1)
    hardest: list[float] = []
    largest = torch.zeros(())
    for step in range(80):
        chosen = torch.randint(len(points), (512,))
        losses = functional.cross_entropy(model(points[chosen]), labels[chosen], reduction="none")
        if is_healthy:
            largest = torch.maximum(largest, losses.detach().max())
        else:
            hardest.append(max(loss.item() for loss in losses.detach()))  # fault
        if is_healthy and step % 20 == 19:
            hardest.append(largest.item())
        optimizer.zero_grad()
        (losses.square().mean() / losses.detach().mean()).backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
