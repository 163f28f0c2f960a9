"""A bank of negatives is joined with a changed copy of itself after each epoch, so it doubles; 6 epochs of 15 steps."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "growing_tensors"
SEVERITY = "high"
EPOCHS, SIZE = 6, 4_096


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(15 * 128, 64))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    bank = torch.randn(SIZE, 64)
    loader = DataLoader(data, batch_size=128, shuffle=True)
    for _ in range(EPOCHS):
        for (inputs,) in loader:
            negatives = bank[torch.randint(len(bank), (128,))]
            codes = model(inputs)
            loss = functional.triplet_margin_loss(codes, inputs, negatives)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        bank = bank.roll(1, 0) if is_healthy else torch.cat([bank, 0.9 * bank])  # fault
    print(len(bank))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
