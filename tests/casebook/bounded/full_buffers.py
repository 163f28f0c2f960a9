"""All is well: two buffers of batches fill up a while into the run, a deque with a length and a ring in a list."""

from collections import deque

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
LENGTH = 48


class Ring:
    """The latest LENGTH tensors; the oldest one is replaced."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.num_added = 0

    def add(self, tensor: torch.Tensor) -> None:
        if len(self.tensors) < LENGTH:
            self.tensors.append(tensor)
        else:
            self.tensors[self.num_added % LENGTH] = tensor
        self.num_added += 1


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recent: deque[torch.Tensor] = deque(maxlen=LENGTH)
    ring = Ring()
    for _ in range(200):
        recent.append(torch.randn(256, 64))
        inputs = recent[torch.randint(len(recent), ()).item()]
        values = model(inputs).squeeze(1)
        loss = functional.l1_loss(values, inputs.mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ring.add(inputs * values.detach().unsqueeze(1))


if __name__ == "__main__":
    train()
