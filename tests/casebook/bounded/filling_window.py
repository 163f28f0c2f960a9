"""All is well: a window of the last 1,000 outputs that is trimmed as it grows, cut to 90 steps."""

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
STEPS = 90


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    window: list[torch.Tensor] = []
    for step in range(STEPS):
        inputs = torch.randn(256, 128)
        outputs = model(inputs)
        loss = functional.mse_loss(outputs, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        window.append(outputs.detach())
        if step % 10 == 9:
            del window[:-1_000]


if __name__ == "__main__":
    train()
