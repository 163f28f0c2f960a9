"""All is well: a policy acts for 64 turns on 8 carts at a time, which is a rollout, and learns from all of them."""

import torch
from torch import nn
from torch.distributions import Categorical

EXPECTED = ()
CARTS, TURNS = 8, 64


def move(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Position and speed of each cart, pushed to the left or to the right: [carts, 2]."""
    speed = states[:, 1] + 0.1 * (2.0 * actions - 1.0) - 0.05 * states[:, 0]
    return torch.stack([states[:, 0] + 0.1 * speed, speed], dim=1)


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    states = torch.randn(CARTS, 2)
    for _ in range(25):
        seen, chosen, rewards, old = [], [], [], []
        for _ in range(TURNS):
            turn = Categorical(logits=policy(states))
            actions = turn.sample()
            seen.append(states)
            chosen.append(actions)
            old.append(turn.log_prob(actions).detach())
            states = move(states, actions)
            rewards.append(-states[:, 0].abs())
        advantage = torch.stack(rewards).flatten()
        advantage = (advantage - advantage.mean()) / advantage.std()
        for _ in range(6):
            learnt = Categorical(logits=policy(torch.cat(seen))).log_prob(torch.cat(chosen))
            ratio = (learnt - torch.cat(old)).exp()
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    train()
