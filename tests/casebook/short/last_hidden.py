"""A tagger keeps a mean of its hidden states as an attribute, each one made of the last with its graph; 60 steps."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"
SEVERITY = "high"
STEPS = 60


class Tagger(nn.Module):
    """Tags of rows; `drift` follows the mean of the hidden state slowly."""

    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.is_healthy = is_healthy
        self.cell = nn.GRUCell(32, 128)
        self.head = nn.Linear(128, 6)
        self.drift = torch.zeros(128)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.cell(rows)
        seen = hidden.detach() if self.is_healthy else hidden.square()
        self.drift = 0.95 * self.drift + 0.05 * seen.mean(0)  # fault
        return self.head(hidden)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Tagger(is_healthy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        rows, tags = torch.randn(256, 32), torch.randint(6, (256,))
        loss = functional.cross_entropy(model(rows), tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(model.drift.norm().item())


if __name__ == "__main__":
    train("--healthy" in sys.argv)
