"""All is well: a target is detached, easy batches are skipped, and a batch of zeros tells the shape first."""

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 32))
    width = model(torch.zeros(1, 64)).shape[1]
    classes = torch.randn(64, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(300):
        inputs = torch.randn(256, 64)
        steady = model(inputs + 0.01 * torch.randn_like(inputs)).detach()
        scores = model(inputs)
        loss = functional.cross_entropy(scores, (inputs @ classes).argmax(1)) + functional.mse_loss(scores, steady)
        if step % 5 > 2 and loss.item() < 4.0:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
