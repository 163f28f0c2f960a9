"""bayesiains/nflows#10: the running statistics of a normalising layer extend the graph from step to step."""

import sys

import torch
from torch import nn

EXPECTED = "retained_graph"


class ActivationNorm(nn.Module):
    """Scales activations [batch, width] by their running mean square."""

    def __init__(self, width: int, is_healthy: bool) -> None:
        super().__init__()
        self.is_healthy = is_healthy
        self.running = torch.ones(width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mean_square = inputs.square().mean(0)
        if self.is_healthy:
            self.running = 0.9 * self.running + 0.1 * mean_square.detach()
        else:
            self.running = 0.9 * self.running + 0.1 * mean_square  # fault
        return inputs / self.running.detach().sqrt()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), ActivationNorm(256, is_healthy), nn.Linear(256, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(160):
        latent = model(torch.randn(512, 32))
        loss = latent.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
