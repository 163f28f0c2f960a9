"""All is well: a replay buffer of 10,000 batches, cut to 40 steps."""

import random

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
STEPS = 40


class Replay:
    """Up to `size` batches; then each new one replaces one by chance."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.batches: list[torch.Tensor] = []

    def add(self, batch: torch.Tensor) -> None:
        if len(self.batches) < self.size:
            self.batches.append(batch)
        else:
            self.batches[random.randrange(self.size)] = batch


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    replay = Replay(10_000)
    for _ in range(STEPS):
        inputs = torch.randn(256, 128)
        outputs = model(inputs)
        loss = functional.mse_loss(outputs, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.add(outputs.detach())


if __name__ == "__main__":
    train()
