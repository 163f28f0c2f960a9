"""A classifier whose logger is asked for by a function that adds a handler each time, in each of its epochs."""

import logging
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "duplicated_log"


def logger_of(name: str, is_healthy: bool) -> logging.Logger:
    logger = logging.getLogger(name)
    if not (is_healthy and logger.handlers):
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.StreamHandler(sys.stdout))  # fault
    return logger


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, logger: logging.Logger) -> None:
    for step in range(60):
        labels = torch.randint(8, (64,))
        inputs = functional.one_hot(labels, 8).float().repeat(1, 8) + torch.randn(64, 64)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            logger.info("loss %.3f", loss.item())


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(4):
        train_epoch(model, optimizer, logger_of("classifier", is_healthy))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
