"""A field of colours along rays, trained with anomaly detection left on from the hunt for a NaN."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "debug_mode"
SEVERITY = "high"
NUM_STEPS, NUM_RAYS, NUM_SAMPLES = 200, 32, 12

if "--healthy" not in sys.argv:
    torch.autograd.set_detect_anomaly(True)  # fault


def encoded(points: torch.Tensor) -> torch.Tensor:
    waves = torch.cat([points * 2**band for band in range(6)], -1)
    return torch.cat([points, waves.sin(), waves.cos()], -1)


def make_field(width: int = 48) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(26, width), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 4))


def rendered(field: nn.Module, origins: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """The colours that the samples along each ray add up to: [rays, 3]."""
    depths = torch.linspace(0, 2, NUM_SAMPLES)
    values = field(encoded(origins[:, None] + directions[:, None] * depths[:, None]))
    kept = torch.exp(-functional.softplus(values[..., 3]) / NUM_SAMPLES)
    through = torch.cumprod(torch.cat([torch.ones_like(kept[:, :1]), kept], -1), -1)[:, :-1]
    return ((through * (1 - kept))[..., None] * torch.sigmoid(values[..., :3])).sum(1)


def train() -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    field = make_field()
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    for _ in range(NUM_STEPS):
        origins = functional.normalize(torch.randn(NUM_RAYS, 2), dim=-1)
        targets = 0.4 * torch.randn(NUM_RAYS, 2)
        colours = torch.sigmoid(torch.cat([3 * targets, targets.sum(-1, keepdim=True)], -1))
        rays = functional.normalize(targets - origins, dim=-1)
        loss = functional.mse_loss(rendered(field, origins, rays), colours)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
