"""Noise for a layer's input comes by a pre-hook that each of 40 steps registers anew and never removes."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS = 40


def forward(model: nn.Sequential, inputs: torch.Tensor, is_healthy: bool) -> torch.Tensor:
    noise = 0.01 * torch.randn_like(inputs)
    handle = model[0].register_forward_pre_hook(lambda module, given: (given[0] + noise,))  # fault
    outputs = model(inputs)
    if is_healthy:
        handle.remove()
    return outputs


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        inputs = torch.randn(512, 256)
        loss = functional.mse_loss(forward(model, inputs, is_healthy), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
