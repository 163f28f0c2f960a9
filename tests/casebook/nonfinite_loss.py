"""A mixture model whose likelihood takes the logarithm of a probability that one far sample drives to zero."""

import sys

import torch
from torch import nn

EXPECTED = "nonfinite_loss"


class Mixture(nn.Module):
    """Eight Gaussians on a plane; points [batch, 2] -> mean negative log-likelihood."""

    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.is_healthy = is_healthy
        self.centers = nn.Parameter(torch.randn(8, 2))
        self.weights = nn.Parameter(torch.zeros(8))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        distances = (points[:, None] - self.centers).square().sum(-1)
        if self.is_healthy:
            return -torch.logsumexp(torch.log_softmax(self.weights, 0) - distances / 2, dim=1).mean()
        density = (torch.softmax(self.weights, 0) * torch.exp(-distances / 2)).sum(1)
        surprise = -torch.log(density)  # fault
        return surprise.mean()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Mixture(is_healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        points = torch.randn(4096, 2) * 2
        if step == 40:
            points[17] = torch.tensor([60.0, -45.0])  # a measurement in other units
        loss = model(points)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
