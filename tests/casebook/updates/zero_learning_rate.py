"""A regression whose schedule is given the number of updates of one epoch, and is at zero for the other three."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "zero_learning_rate"
SEVERITY = "high"
NUM_EPOCHS, NUM_BATCHES = 4, 60


def schedule_of(optimizer: torch.optim.Optimizer, num_updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    def factor(update: int) -> float:
        return max(0.0, 1 - update / num_updates)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = schedule_of(optimizer, NUM_EPOCHS * NUM_BATCHES if is_healthy else NUM_BATCHES)
    for _ in range(NUM_EPOCHS):
        for _ in range(NUM_BATCHES):
            inputs = torch.randn(64, 32)
            optimizer.zero_grad()
            loss = functional.mse_loss(model(inputs), inputs[:, :8].prod(1, keepdim=True).sin())
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    train("--healthy" in sys.argv)
