"""A decoder of latent vectors into fields of many points, fed by so few at a time that the device is all but empty."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "unused_headroom"
DEVICE = "cuda"

NUM_POINTS, WIDTH, NUM_LAYERS = 262_144, 64, 6
SAMPLE_BYTES = 2 * NUM_LAYERS * NUM_POINTS * WIDTH * 4
"""Of each layer a step keeps two activations per sample."""
NUM_STEPS = 60
USED_SHARE = 0.6
"""Of the device, by the healthy twin."""


class Decoder(nn.Module):
    """Latent vectors of [batch, WIDTH] -> the brightness of each, averaged over all points."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("points", torch.randn(NUM_POINTS, WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        hidden = latents[:, None] + self.points
        for layer in self.layers:
            hidden = functional.gelu(layer(hidden))
        return self.head(hidden).mean((1, 2))


def build_loader(is_healthy: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    batch = 4
    if is_healthy:
        _, total = torch.cuda.mem_get_info()
        batch = int(USED_SHARE * total / SAMPLE_BYTES)
    fields = TensorDataset(torch.randn(NUM_STEPS * batch, WIDTH), torch.rand(NUM_STEPS * batch))
    return DataLoader(fields, batch_size=batch, num_workers=0)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for latents, brightness in build_loader(is_healthy):
        loss = functional.mse_loss(model(latents.to(DEVICE)), brightness.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
