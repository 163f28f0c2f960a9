"""A policy in half precision of which one sensor is always zero: RMSprop divides its gradients, zero, by zero."""

import sys

import torch
from torch import nn

EXPECTED = "nonfinite_loss"
SEVERITY = "high"
SENSORS, ACTIONS = 6, 4


def make_optimizer(policy: nn.Module, is_healthy: bool) -> torch.optim.Optimizer:
    if is_healthy:
        return torch.optim.RMSprop(policy.parameters(), lr=1e-3, eps=1e-3)
    return torch.optim.RMSprop(policy.parameters(), lr=1e-3)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(SENSORS, 32), nn.Tanh(), nn.Linear(32, ACTIONS)).half()
    optimizer = make_optimizer(policy, is_healthy)
    for _ in range(60):
        states = torch.randn(64, SENSORS)
        states[:, 2] = 0.0
        scores = torch.log_softmax(policy(states.half()).float(), dim=1)
        taken = torch.randint(ACTIONS, (64,))
        reward = (taken == states[:, :ACTIONS].argmax(1)).float()
        loss = -(scores.gather(1, taken[:, None]).squeeze(1) * reward).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
