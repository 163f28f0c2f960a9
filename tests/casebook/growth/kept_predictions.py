"""A class collects the predictions of a validation as arrays, and never clears them: memory grows with each validation.

It grows by stairs, and the arrays lie in the memory of tensors: an array itself has a hundred bytes.
"""

import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "memory_growth"
SEVERITY = "high"
STEPS, EVERY, WIDTH = 400, 20, 2048


class Validation:
    def __init__(self, loader: "DataLoader[Any]", *, is_cleared: bool) -> None:
        self.loader, self.is_cleared = loader, is_cleared
        self.predictions: list[np.ndarray[Any, Any]] = []

    @torch.no_grad()
    def error_of(self, model: nn.Module) -> float:
        if self.is_cleared:
            self.predictions.clear()
        targets = []
        for inputs, target in self.loader:
            targets.append(target.mean(dim=1))
            self.predictions.append(model(inputs).numpy())  # fault
        newest = self.predictions[-len(targets) :]
        return float(
            np.mean([abs(one.mean(axis=1) - other.numpy()).mean() for one, other in zip(newest, targets, strict=True)])
        )


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(1280, 32)
    targets = inputs @ torch.randn(32, WIDTH) / 6
    data = TensorDataset(inputs, targets)
    validation = Validation(DataLoader(TensorDataset(inputs[:512], targets[:512]), 128), is_cleared=is_healthy)
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, WIDTH))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while step < STEPS:
        for batch, target in DataLoader(data, 64, shuffle=True):
            loss = functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                print(step, loss.item(), validation.error_of(model))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
