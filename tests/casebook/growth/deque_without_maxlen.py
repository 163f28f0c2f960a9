"""A forecaster whose callback keeps recent predictions in a deque that was given no length."""

import sys
from collections import deque

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"


class Recent:
    """Called with the predictions of every step."""

    def __init__(self, length: int | None) -> None:
        self.predictions: deque[torch.Tensor] = deque(maxlen=length)

    def __call__(self, predictions: torch.Tensor) -> None:
        self.predictions.append(predictions.detach().clone())  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 96))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    callbacks = [Recent(8 if is_healthy else None)]
    for _ in range(160):
        series = torch.randn(512, 192).cumsum(1)
        past, future = series.chunk(2, dim=1)
        predictions = model(past)
        loss = functional.l1_loss(predictions, future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            callback(predictions)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
