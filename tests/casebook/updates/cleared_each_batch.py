"""A network that sums rows, whose batches are accumulated, but for the gradients, which each batch clears."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "discarded_gradients"
SEVERITY = "high"
NUM_BATCHES = 4


class Trainer:
    """A model, and updates of it that follow NUM_BATCHES batches each."""

    def __init__(self, is_healthy: bool) -> None:
        self.model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.is_healthy = is_healthy

    def compute_loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(inputs), targets) / NUM_BATCHES

    def train_epoch(self, loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
        for number, (inputs, targets) in enumerate(loader, start=1):
            if not self.is_healthy:
                self.optimizer.zero_grad(set_to_none=True)  # fault
            self.compute_loss(inputs, targets).backward()
            if number % NUM_BATCHES == 0:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(4096, 32)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    trainer = Trainer(is_healthy)
    for _ in range(2):
        trainer.train_epoch(loader)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
