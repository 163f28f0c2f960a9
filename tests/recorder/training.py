"""Small trainings that tests record, and the parts that they are made of."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

BATCH = 4

Batch = tuple[torch.Tensor, torch.Tensor]
Loader = DataLoader[tuple[torch.Tensor, ...]]


def make_batch() -> Batch:
    inputs = torch.randn(BATCH, 3)
    return inputs, inputs.sum(1, keepdim=True)


def make_loader(num_batches: int, **settings: Any) -> Loader:
    inputs = torch.randn(num_batches * BATCH, 3)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=BATCH, **settings)


def make_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def make_training(device: str = "cpu") -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    """A model, and what trains it."""
    model = make_model().to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def make_weight(size: int = 1, value: float = 1.0) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    """A weight, and an optimizer that leaves it as it is."""
    weight = torch.full((size,), value, requires_grad=True)
    return weight, torch.optim.SGD([weight], lr=0.0)


def error_of(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(inputs), targets)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *batch: torch.Tensor) -> torch.Tensor:
    """One of those that `train` makes; its loss."""
    optimizer.zero_grad()
    loss = error_of(model, *batch)
    loss.backward()  # backward
    optimizer.step()
    return loss.detach()


def train(model: torch.nn.Module, loader: Iterable[Any], optimizer: torch.optim.Optimizer) -> None:
    for batch in loader:
        train_step(model, optimizer, *batch)


def train_plainly(num_steps: int = 6) -> None:
    model, optimizer = make_training()
    train(model, make_loader(num_steps), optimizer)


def update_by_hand(model: torch.nn.Module) -> None:
    """Without an optimizer."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


def evaluate(model: torch.nn.Module, batches: Iterable[Any]) -> None:
    """A pass without gradients."""
    with torch.no_grad():
        for batch in batches:
            error_of(model, *batch)
