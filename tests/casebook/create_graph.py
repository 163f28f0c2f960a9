"""A saliency penalty by `backward(create_graph=True)`: each pass stays alive in a cycle with its input's gradient."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "memory_growth"


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Softplus(), nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(200):
        inputs = torch.randn(512, 64)
        targets = inputs.square().mean(1)
        inputs.requires_grad_()
        scores = model(inputs).squeeze(1)
        if is_healthy:
            (slopes,) = torch.autograd.grad(scores.sum(), inputs, create_graph=True)
        else:
            scores.sum().backward(create_graph=True)  # fault
            slopes = inputs.grad
        optimizer.zero_grad()
        (functional.mse_loss(scores, targets) + slopes.square().mean()).backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
