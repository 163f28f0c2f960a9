"""A scaler that skips every step from one on: a feature that is always zero then has a slope that is infinite."""

import sys

import torch
from torch import nn

EXPECTED = "nonfinite_loss"
OPTIONS = ("--hunt",)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(100):
        inputs = torch.randn(16, 8)
        weights = torch.ones(16, 1)
        weights[3] = 0.0 if step >= 30 else 1.0
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(inputs)
        distance = ((outputs.float() - inputs) * weights).square().sum(1)
        loss = (distance + (1e-6 if is_healthy else 0.0)).sqrt().mean()  # fault
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
