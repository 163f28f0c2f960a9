"""Crops that a function draws are cached by the tensor they are cut from, so it never hits; 40 steps."""

import functools
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS = 40


@functools.cache
def crops(pictures: torch.Tensor) -> torch.Tensor:  # fault
    """[batch, 3, 24, 24], each cut somewhere else."""
    left, top = (int(torch.randint(8, ())) for _ in range(2))
    return pictures[:, :, top : top + 24, left : left + 24].contiguous()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        pictures, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
        cut = crops.__wrapped__(pictures) if is_healthy else crops(pictures)
        loss = functional.cross_entropy(model(cut), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
