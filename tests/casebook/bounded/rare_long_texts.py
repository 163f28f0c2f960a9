"""All is well: every twentieth batch has texts sixty times as long, and takes the lines that all others take."""

import torch
from torch import nn

EXPECTED = ()
SHORT, LONG, PERIOD = 16, 960, 20


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(200):
        texts = torch.randint(256, (16, LONG if step % PERIOD == 0 else SHORT))
        optimizer.zero_grad()
        loss = model(texts).square().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
