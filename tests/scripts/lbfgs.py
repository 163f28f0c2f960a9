"""A sine fitted by L-BFGS, which evaluates the model as often as it likes within one step."""

import torch
from torch import nn

NUM_STEPS = 8


def main() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 128).unsqueeze(1)
    y = torch.sin(x)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, tolerance_grad=0, tolerance_change=0)

    for step in range(NUM_STEPS):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"step {step} loss {loss.item()}")


if __name__ == "__main__":
    main()
