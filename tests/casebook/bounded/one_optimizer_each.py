"""Optimizers that look built again: after a move, for other parameters, once a layer is unfrozen, with old state."""

import copy

import torch
from torch import nn

EXPECTED = ()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    points = torch.randn(64, 8)
    loss = (model(points).squeeze(1) - points.norm(dim=1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    torch.optim.Adam(model.parameters(), lr=1e-2)  # never used: the model is moved first
    model.to("cpu").float()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-2)
    for _ in range(30):
        step(model, optimizer)
    model[0].requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        step(model, optimizer)
    for _ in range(3):  # as where a checkpoint is loaded
        saved = copy.deepcopy(optimizer.state_dict())
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        optimizer.load_state_dict(saved)
        for _ in range(20):
            step(model, optimizer)
    for seed in range(3):  # as for each fold of a cross-validation
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(20):
            step(model, optimizer)


if __name__ == "__main__":
    train()
