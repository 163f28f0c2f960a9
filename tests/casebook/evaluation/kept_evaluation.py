"""Super-resolution of textures, whose validation keeps each batch's scores with their graphs to find the worst picture.

After facebookarchive/loop#57 and leftthomas/SRGAN#43.
"""

import contextlib
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "evaluation_graph"
SEVERITY = "high"


class Upscaler(nn.Module):
    """[batch, 1, 24, 24] -> [batch, 1, 48, 48]."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(1, channels, 5, padding=2), nn.PReLU())
        self.body = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))
        self.tail = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        features = self.head(small)
        for layer in self.body:
            features = features + torch.relu(layer(features))
        return torch.sigmoid(self.tail(features))


def textures(count: int) -> TensorDataset:
    grid = torch.linspace(0, 6.28, 48)
    phase = torch.rand(count, 2, 1, 1) * 6
    waves = torch.sin(grid[:, None] + phase[:, :1]) * torch.cos(grid - phase[:, 1:])
    large = 0.5 + 0.25 * waves
    return TensorDataset(functional.avg_pool2d(large, 2), large)


def train_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for small, large in loader:
        loss = functional.mse_loss(model(small), large)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def worst_picture(model: nn.Module, loader: DataLoader, is_healthy: bool) -> int:
    model.eval()
    errors = []
    gradients = torch.no_grad() if is_healthy else contextlib.nullcontext()
    with gradients:
        for small, large in loader:
            restored = model(small)  # fault
            errors.append((restored - large).square().mean((1, 2, 3)))
    return int(torch.cat(errors).argmax())


def train(is_healthy: bool) -> None:
    torch.manual_seed(4)
    torch.set_num_threads(1)
    batches = DataLoader(textures(640), batch_size=16, shuffle=True)
    validation = DataLoader(textures(320), batch_size=16)
    model = Upscaler()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        train_epoch(model, batches, optimizer)
        print(epoch, "worst picture", worst_picture(model, validation, is_healthy))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
