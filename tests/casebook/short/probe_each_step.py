"""A probe per step, an object that hooks itself into a layer and keeps what it sees; 60 steps."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS = 60


class Probe:
    """The last output of a layer, as long as it is in it."""

    def __init__(self, module: nn.Module) -> None:
        self.output: torch.Tensor | None = None
        self.handle = module.register_forward_hook(self.keep)  # fault

    def keep(self, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        if self.output is None:
            self.output = output.detach().clone()

    def spread(self) -> float:
        assert self.output is not None
        return self.output.std().item()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        probe = Probe(model[1])
        inputs = torch.randn(512, 64)
        loss = functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(probe.spread())
        if is_healthy:
            probe.handle.remove()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
