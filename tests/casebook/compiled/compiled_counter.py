"""A denoiser that counts its calls in an attribute, to warm its noise up: for the compiler each count is a constant."""

import sys

import torch
from torch import nn

EXPECTED = "recompilation"
SEVERITY = "high"


class Denoiser(nn.Module):
    """Signals [batch, 32] -> what is left of the noise put on them."""

    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.num_calls = torch.zeros(()) if is_healthy else 0

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        self.num_calls = self.num_calls + 1
        noise = torch.randn_like(signals) * self.num_calls / (self.num_calls + 20)
        return (self.layers(signals + noise) - signals).square().mean()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.compile(Denoiser(is_healthy), backend="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 32).cumsum(1) / 4)  # fault
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
