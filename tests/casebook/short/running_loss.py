"""The tutorial's running loss in a run of 40 steps, added up as a tensor with the graph of every step."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"
SEVERITY = "medium"
STEPS = 40


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    running_loss: torch.Tensor | float = 0.0
    for _ in range(STEPS):
        inputs = torch.randn(64, 64)
        outputs = model(inputs)
        loss = functional.mse_loss(outputs, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_healthy:
            running_loss += loss.item()
        else:
            running_loss += loss  # fault
    print(float(running_loss) / STEPS)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
