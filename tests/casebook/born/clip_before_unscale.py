"""The same kind of network under a gradient scaler, which clips before the gradients are unscaled."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "clip_before_unscale"


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(120):
        inputs = torch.randn(32, 16)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.mse_loss(model(inputs).squeeze(1), inputs.sum(1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if is_healthy:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # fault
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
