"""Policy gradients of 90 steps whose baseline, an attribute of the agent, follows a reward that has a graph."""

import sys

import torch
from torch import nn

EXPECTED = "retained_graph"
SEVERITY = "medium"
STEPS = 90


class Agent:
    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        layers = [layer for _ in range(8) for layer in (nn.Linear(48, 48), nn.Tanh())]
        self.policy = nn.Sequential(*layers, nn.Linear(48, 5))
        self.baseline: torch.Tensor | None = None

    def loss_of(self, states: torch.Tensor) -> torch.Tensor:
        chances = self.policy(states).softmax(1)
        reward = (chances * torch.linspace(0, 1, 5)).sum(1).mean()
        advantage = reward.detach() - (0.0 if self.baseline is None else self.baseline.detach())
        self.follow(reward.detach() if self.is_healthy else reward)
        return -advantage * chances.log().mean()

    def follow(self, reward: torch.Tensor) -> None:
        self.baseline = reward if self.baseline is None else torch.lerp(self.baseline, reward, 0.1)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    agent = Agent(is_healthy)
    optimizer = torch.optim.SGD(agent.policy.parameters(), lr=0.05)
    for _ in range(STEPS):
        loss = agent.loss_of(torch.randn(64, 48))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
