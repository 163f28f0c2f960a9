"""alexhernandezgarcia/gflownet#133: moving averages of the losses are tensors that hold all steps before them."""

import sys

import torch
from torch import nn

EXPECTED = "retained_graph"


class Averages:
    """Of the loss, for the log, and of its square."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.loss, self.square = 0.0, torch.zeros(())

    def update(self, losses: torch.Tensor) -> None:
        self.loss = 0.9 * self.loss + 0.1 * losses.mean().item()
        square = losses.square().mean()
        if self.is_healthy:
            square = square.detach()
        self.square = 0.9 * self.square + 0.1 * square  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(16, 128), nn.LeakyReLU(), nn.Linear(128, 64))
    log_z = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([*policy.parameters(), log_z], lr=1e-3)
    averages = Averages(is_healthy)
    for _ in range(160):
        states, rewards = torch.randn(1024, 16), torch.rand(1024, 1)
        log_probabilities = policy(states).log_softmax(1)
        losses = (log_z + log_probabilities - rewards.log()).abs()  # [trajectory, action]
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        averages.update(losses)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
