"""A generator and a critic; each is clipped in a function that ends its turn, once its own optimizer has stepped."""

import sys

import torch
from torch import nn

EXPECTED = "clip_after_step"
SEVERITY = "high"


class Turn:
    """A network, its optimizer, and the end of its turn in each step."""

    def __init__(self, network: nn.Module, is_healthy: bool) -> None:
        self.network = network
        self.optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-4)
        self.is_healthy = is_healthy

    def limit(self) -> None:
        nn.utils.clip_grad_value_(self.network.parameters(), 0.1)  # fault

    def take(self, loss: torch.Tensor) -> None:
        self.network.zero_grad()
        loss.backward()
        if self.is_healthy:
            self.limit()
        self.optimizer.step()
        if not self.is_healthy:
            self.limit()


def layers(num_inputs: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, num_outputs))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = Turn(layers(8, 2), is_healthy)
    critic = Turn(layers(2, 1), is_healthy)
    for _ in range(100):
        real = torch.randn(128, 2) * 0.3 + 1
        made = generator.network(torch.randn(128, 8))
        critic.take(critic.network(made.detach()).mean() - critic.network(real).mean())
        generator.take(-critic.network(made).mean())


if __name__ == "__main__":
    train("--healthy" in sys.argv)
