"""All is well: the predictions of the last hundred steps are kept in a list that every step trims."""

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    history: list[torch.Tensor] = []
    for _ in range(240):
        inputs = torch.randn(256, 64)
        predictions = model(inputs)
        loss = functional.l1_loss(predictions, inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(predictions.detach())
        del history[:-100]


if __name__ == "__main__":
    train()
