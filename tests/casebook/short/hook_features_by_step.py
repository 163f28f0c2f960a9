"""A probe of 60 steps whose hooks write detached features of each layer into one dict, under the layer and the step."""

import sys
from functools import partial

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS = 60

features: dict[tuple[str, int], torch.Tensor] = {}
at = {"step": 0}


def keep(name: str, is_healthy: bool, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
    key = (name, 0 if is_healthy else at["step"])
    features[key] = output.detach()  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
    for name in ("0", "2"):
        model.get_submodule(name).register_forward_hook(partial(keep, name, is_healthy))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        at["step"] = step
        inputs = torch.randn(512, 64)
        loss = functional.huber_loss(model(inputs).squeeze(1), inputs.mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(features))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
