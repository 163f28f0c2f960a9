"""A classifier of spirals whose trainer halves the learning rate by building the optimizer again, with momentum."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "recreated_optimizer"
SEVERITY = "high"


class Trainer:
    """Keeps the model and what trains it; `slow_down` is called every 25 steps."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.rate = 0.1
        self.model = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=5)

    def slow_down(self) -> None:
        self.rate /= 2
        if self.is_healthy:
            self.optimizer.param_groups[0]["lr"] = self.rate
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=0.9)  # fault

    def step(self, points: torch.Tensor, arms: torch.Tensor) -> None:
        loss = functional.cross_entropy(self.model(points), arms)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    arms = torch.randint(3, (count,))
    radius = torch.rand(count)
    angle = 4 * radius + 2.1 * arms + 0.1 * torch.randn(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arms


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trainer = Trainer(is_healthy)
    for step in range(1, 121):
        trainer.step(*spirals(256))
        if step % 25 == 0:
            trainer.slow_down()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
