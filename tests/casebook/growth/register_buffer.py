"""A model that registers the centres of each batch as a buffer under a new name, so that they are saved with it."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"


class Clusterer(nn.Module):
    """Moves vectors [batch, 128] towards the centres of their batch."""

    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.is_healthy = is_healthy
        self.encoder = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
        self.num_seen = 0

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        encoded = self.encoder(vectors)
        centres = encoded.detach().unflatten(0, (-1, 2)).mean(1)
        name = "centres" if self.is_healthy else f"centres_{self.num_seen}"
        self.register_buffer(name, centres)  # fault
        self.num_seen += 1
        return functional.l1_loss(encoded, centres.repeat_interleave(2, 0))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Clusterer(is_healthy)
    optimizer = torch.optim.SGD(model.encoder.parameters(), lr=0.05)
    for _ in range(160):
        loss = model(torch.randn(512, 128))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
