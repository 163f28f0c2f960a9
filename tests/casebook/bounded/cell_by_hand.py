"""Healthy, though it runs hundreds of small operators in a loop: each time step needs the state of the one before."""

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
LENGTH, WIDTH, NUM_STEPS = 48, 24, 60


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.given, self.kept = (nn.Parameter(0.2 * torch.randn(WIDTH, WIDTH)) for _ in range(2))
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] -> the last state: [batch, width]."""
        state = torch.zeros(len(series), WIDTH)
        for values in series.unbind(1):
            new = torch.tanh(values @ self.given + state @ self.kept)
            state = state + torch.sigmoid(self.gate) * (new - state)
        return state


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cell = Cell()
    optimizer = torch.optim.Adam(cell.parameters(), lr=1e-3)
    for _ in range(NUM_STEPS):
        series = torch.randn(16, LENGTH, WIDTH).cumsum(1)
        loss = functional.mse_loss(cell(series), series[:, -1].tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
