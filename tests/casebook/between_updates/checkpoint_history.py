"""A checkpoint is written as a whole again every 20 steps, and its history is twice as long each time."""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "long_steps"
SEVERITY = "high"
NUM_STEPS, PERIOD = 320, 20


class Run:
    """A model in training with the log of its steps."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "history.json"
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.path.write_text("[]")

    def update(self) -> float:
        inputs = torch.randn(128, 64)
        loss = functional.cross_entropy(self.model(inputs), inputs[:, :8].argmax(dim=1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self, losses: list[float], *, num_copies: int) -> None:
        """Add the losses to the history of the file."""
        history: list[float] = json.loads(self.path.read_text())
        self.path.write_text(json.dumps(num_copies * history + losses))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        for _ in range(NUM_STEPS // PERIOD):
            losses = [run.update() for _ in range(PERIOD)]
            run.save(losses, num_copies=1 if is_healthy else 2)  # fault


if __name__ == "__main__":
    train("--healthy" in sys.argv)
