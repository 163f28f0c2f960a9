"""All is well: each epoch is one batch, so that the loader starts again after each step, at its end."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = ()
NUM_EPOCHS, NUM_POINTS = 150, 256


def make_points() -> TensorDataset:
    places = torch.rand(NUM_POINTS, 2) * 2 - 1
    heights = torch.sin(3 * places[:, :1]) * torch.cos(2 * places[:, 1:])
    return TensorDataset(places, heights)


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers: list[nn.Module] = [nn.Linear(2, 512), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(512, 512), nn.Tanh()]
    surface = nn.Sequential(*layers, nn.Linear(512, 1))
    optimizer = torch.optim.Adam(surface.parameters(), lr=1e-3)
    points = DataLoader(make_points(), batch_size=NUM_POINTS, shuffle=True)
    for _ in range(NUM_EPOCHS):
        for places, heights in points:
            loss = (surface(places) - heights).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    train()
