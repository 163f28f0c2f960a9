"""A trainer that refuses every third batch and keeps the error: its traceback holds the frame with the whole step."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"


class BadBatchError(Exception):
    """The loss of a batch is beyond belief."""


class Trainer:
    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.errors: list[object] = []

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        predictions = self.model(inputs).squeeze(1)
        loss = functional.l1_loss(predictions, targets)
        if loss > 10:
            raise BadBatchError("an outlier")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def train(self, num_steps: int) -> None:
        for step in range(num_steps):
            inputs = torch.randn(512, 64)
            targets = inputs.sum(1) + (100 if step % 3 == 2 else 0)
            try:
                self.train_step(inputs, targets)
            except BadBatchError as error:
                self.errors.append(str(error) if self.is_healthy else error)  # fault


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    Trainer("--healthy" in sys.argv).train(240)
