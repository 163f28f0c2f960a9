"""All is well: the outputs of one long epoch, which ends by emptying them, cut to 60 steps."""

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
STEPS = 60


class Epoch:
    """What an epoch puts out."""

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def end(self) -> None:
        print(torch.cat(self.outputs).std().item())
        self.outputs = []


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epoch = Epoch()
    for step in range(STEPS):
        inputs = torch.randn(256, 128)
        outputs = model(inputs)
        loss = functional.mse_loss(outputs, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch.outputs.append(outputs.detach())
        if step == 5_000:
            epoch.end()


if __name__ == "__main__":
    train()
