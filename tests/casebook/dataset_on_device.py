"""An autoencoder of pictures whose whole data set lies on the device, though a step takes 64 of them."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "dataset_on_device"
DEVICE = "cuda"

NUM_PICTURES, NUM_PIXELS, BATCH = 6144, 3 * 64 * 64, 64


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(NUM_PIXELS, 256), nn.GELU(), nn.Linear(256, 32), nn.GELU(), nn.Linear(32, 256), nn.GELU(),
        nn.Linear(256, NUM_PIXELS), nn.Sigmoid(),
    )  # fmt: skip


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    stripes = torch.randint(256, (NUM_PICTURES, 64), dtype=torch.uint8)
    pictures = stripes.repeat(1, NUM_PIXELS // 64).pin_memory()
    if not is_healthy:
        pictures = pictures.to(DEVICE)  # fault
    model = build_model().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for first in range(0, NUM_PICTURES, BATCH):
        batch = pictures[first : first + BATCH].to(DEVICE, non_blocking=True).float() / 255
        loss = functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
