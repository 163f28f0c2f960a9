"""A recurrent regressor that keeps each step's hidden states, with their graph, to plot them after training."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"


class Forecaster(nn.Module):
    """Predicts the next value of a series: [batch, time] -> ([batch], hidden states [batch, time, 32])."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, 32, batch_first=True)
        self.probe = nn.Linear(32, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, series: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, _ = self.recurrent(series[..., None])
        return self.head(states[:, -1]).squeeze(-1), torch.tanh(self.probe(states))


class Trainer:
    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.model = Forecaster()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.kept_states: list[torch.Tensor] = []

    def train_step(self, series: torch.Tensor) -> None:
        prediction, states = self.model(series[:, :-1])
        loss = functional.mse_loss(prediction, series[:, -1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.is_healthy:
            self.kept_states = [states[:, -1].detach()]
        else:
            self.kept_states.append(states)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trainer = Trainer(is_healthy)
    time = torch.arange(49) / 8
    for _ in range(240):
        phase = torch.rand(64, 1) * 6.28
        trainer.train_step(torch.sin(time + phase))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
