"""A compiled model that meets a smaller last batch and an evaluation: each is compiled once more, and no more."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = ()


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    points = torch.randn(1000, 8)
    loader = DataLoader(TensorDataset(points, (points.sum(1) > 0).long()), batch_size=64)
    for _ in range(6):
        model.train()
        for inputs, kinds in loader:
            loss = functional.cross_entropy(compiled(inputs), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for inputs, _ in loader:
                compiled(inputs)


if __name__ == "__main__":
    train()
