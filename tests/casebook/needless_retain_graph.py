"""A network that learns a picture from its pixels' places; each step's graph is kept, and nobody goes through it."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "needless_retain_graph"
NUM_PIXELS = 16_384


class PictureNetwork(nn.Module):
    """places [pixels, 2] -> colours [pixels, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 64)
        self.hidden = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.leave = nn.Linear(64, 3)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        features = torch.sin(self.enter(places))
        for layer in self.hidden:
            features = functional.gelu(layer(features))
        return torch.sigmoid(self.leave(features))


def picture(places: torch.Tensor) -> torch.Tensor:
    """The colours to be learned: rings around three centres."""
    centres = torch.tensor([[0.2, 0.3], [0.8, 0.4], [0.5, 0.9]])
    return torch.sin(20 * torch.cdist(places, centres)).square()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = PictureNetwork()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(32):
        places = torch.rand(NUM_PIXELS, 2)
        colours = network(places)
        loss = functional.mse_loss(colours, picture(places))
        optimizer.zero_grad()
        if is_healthy:
            loss.backward()
        else:
            loss.backward(retain_graph=True)  # fault
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
