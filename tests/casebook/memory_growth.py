"""A compiled layer that centres its inputs keeps each of them for later, in a list that Python does not see."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "memory_growth"
WIDTH = 128


class Centre(nn.Module):
    """Takes the mean away; the list is one of TorchScript's, and lies in C++."""

    seen: list[torch.Tensor]

    def __init__(self, is_bounded: bool) -> None:
        super().__init__()
        self.is_bounded = is_bounded
        self.seen = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        centred = inputs - inputs.mean(0)
        if self.is_bounded:
            self.seen.clear()
        self.seen.append(centred)
        return centred


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    centre = torch.jit.script(Centre(is_healthy))
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(400):
        inputs = torch.randn(512, WIDTH)
        centred = centre(inputs)  # fault
        loss = functional.mse_loss(model(centred), centred)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
