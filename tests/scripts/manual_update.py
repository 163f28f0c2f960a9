"""Gradient descent by hand: no optimizer, no loader, the weights updated in place."""

import torch
from torch import nn

LEARNING_RATE = 1e-5


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = x.prod(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    loss_fn = nn.MSELoss(reduction="sum")

    for t in range(20):
        y_pred = model(x)
        loss = loss_fn(y_pred, y)
        print(t, loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= LEARNING_RATE * param.grad


if __name__ == "__main__":
    main()
