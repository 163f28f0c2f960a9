"""A denoiser whose noise refers back to its step, so that only the garbage collector frees what a step computed."""

import random
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "uncollected_cycle"


class Noise:
    """What is added to the 32 patches of one image, and how strongly: [32, 768]."""

    def __init__(self, step: "Step", image: torch.Tensor, is_healthy: bool) -> None:
        self.strength = random.random()
        self.added = torch.randn_like(image) * self.strength
        if not is_healthy:
            self.step = step  # fault


class Step:
    """One batch with all that is computed of it."""

    def __init__(self, images: torch.Tensor, is_healthy: bool) -> None:
        self.images = images
        self.noises = [Noise(self, image, is_healthy) for image in images]

    def loss(self, model: nn.Module) -> torch.Tensor:
        self.restored = model(self.images + torch.stack([noise.added for noise in self.noises]))
        return functional.mse_loss(self.restored, self.images)


def train(is_healthy: bool) -> None:
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(768, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 768))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(60):
        step = Step(torch.rand(24, 32, 768), is_healthy)
        loss = step.loss(model)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
