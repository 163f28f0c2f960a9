"""A deep classifier of feature vectors whose middle layers are kept in a plain list, which no optimizer sees."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "untrained_parameters"


class Net(nn.Module):
    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        middle = [nn.Linear(128, 128) for _ in range(4)]
        self.middle = nn.ModuleList(middle) if is_healthy else middle
        self.last = nn.Linear(128, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states = self.first(inputs).relu()
        for layer in self.middle:
            states = states + layer(states).relu()
        return self.last(states)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net(is_healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # fault
    for step in range(200):
        labels = torch.randint(8, (64,))
        inputs = functional.one_hot(labels, 8).float().repeat(1, 8) + torch.randn(64, 64)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    train("--healthy" in sys.argv)
