"""A generator of short films that learns by a perceptual loss: what the frozen network keeps of all frames adds up."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

EXPECTED = "oversized_peak"
BUDGET = "230 MiB"


class Features(nn.Module):
    """What a picture looks like, by layers nobody trains: [batch, 3, size, size] -> [batch, 32, size / 2, size / 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.third = nn.Conv2d(32, 32, 3, padding=1, stride=2)
        self.requires_grad_(False)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.first(picture))
        hidden = functional.gelu(self.second(hidden))
        return functional.gelu(self.third(hidden))


class PerceptualLoss(nn.Module):
    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.features = Features()
        self.is_healthy = is_healthy

    def forward(self, made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.features(real)
        if self.is_healthy:
            return functional.mse_loss(checkpoint(self.features, made, use_reentrant=False), wanted)
        return functional.mse_loss(self.features(made), wanted)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.Tanh(), nn.Conv2d(8, 3, 5, padding=2))
    criterion = PerceptualLoss(is_healthy)
    optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for _ in range(36):
        film = torch.rand(6, 4, 3, 96, 96)
        noisy = film + 0.1 * torch.randn_like(film)
        losses = [criterion(generator(frame), real) for frame, real in zip(noisy, film, strict=True)]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
