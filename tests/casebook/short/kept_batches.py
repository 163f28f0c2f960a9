"""Every batch of 60 steps is kept in a list, of which only the last is looked at."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS, SIZE = 60, 512


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(STEPS * SIZE, 64), torch.randint(8, (STEPS * SIZE,)))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen: list[list[torch.Tensor]] = [[torch.zeros(1)]]
    for batch in DataLoader(data, batch_size=SIZE, shuffle=True):
        inputs, labels = batch
        loss = functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_healthy:
            seen[-1] = batch
        else:
            seen.append(batch)  # fault
    print(seen[-1][0].mean().item())


if __name__ == "__main__":
    train("--healthy" in sys.argv)
