"""A network in float16 whose gradient scaler tries twice the scale every tenth step, which overflows each time."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "skipped_updates"


class Regressor(nn.Module):
    """How far points lie from the middle: [batch, 16] -> distances [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points).squeeze(-1)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", growth_interval=10)  # fault
    if is_healthy:
        scaler.set_growth_interval(2000)
    for _ in range(300):
        points = torch.randn(256, 16)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.mse_loss(model(points).float(), points.norm(dim=1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
