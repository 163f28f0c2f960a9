"""A segmenter that stores each batch's masks in a dict of its class, by the batch's name: all its objects share it."""

import sys
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"


class Segmenter(nn.Module):
    masks: ClassVar[dict[str, torch.Tensor]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))

    def forward(self, pictures: torch.Tensor, name: str) -> torch.Tensor:
        logits = self.layers(pictures)
        self.remember(name, logits.detach().sigmoid())
        return logits

    @classmethod
    def remember(cls, name: str, masks: torch.Tensor) -> None:
        cls.masks[name] = masks  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(160):
        pictures = torch.randn(48, 1, 32, 32)
        logits = model(pictures, "latest" if is_healthy else f"batch {step}")
        loss = functional.binary_cross_entropy_with_logits(logits, (pictures > 0).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
