"""A GRU that reads long sequences, whose gradients grow until its weights do; nobody clips them."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "nonfinite_loss"
OPTIONS = ("--hunt",)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 32)
        self.rnn = nn.RNN(32, 48, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(48, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(self.embed(series))
        return self.head(states[:, -1]).squeeze(1)


def train(is_healthy: bool) -> None:
    torch.manual_seed(2)
    torch.set_num_threads(1)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
    for step in range(160):
        series = torch.randn(16, 60, 6)
        if step == 90:
            series = series * 25  # a sensor that was calibrated
        loss = functional.mse_loss(model(series), series[:, :, 0].mean(1))
        optimizer.zero_grad()
        loss.backward()  # fault
        if is_healthy:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
