"""A denoiser that has Python's garbage collector look through everything after each step."""

import gc
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "debug_mode"
SEVERITY = "high"
NUM_STEPS = 60


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    denoiser = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128))
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-3)
    for step in range(NUM_STEPS):
        clean = torch.randn(64, 128).cumsum(1)
        loss = functional.mse_loss(denoiser(clean + torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not is_healthy or step == NUM_STEPS // 2:
            gc.collect()  # fault


if __name__ == "__main__":
    train("--healthy" in sys.argv)
