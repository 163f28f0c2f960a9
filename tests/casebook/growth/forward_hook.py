"""A regressor whose layers are watched by hooks that store every output, with its graph, for a picture at the end."""

import sys
from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"


class Watch:
    """The outputs of each layer; the healthy one keeps their means alone."""

    def __init__(self, model: nn.Sequential, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.outputs: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        self.means: list[float] = []
        model[1].register_forward_hook(self.store)

    def store(self, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        if self.is_healthy:
            self.means.append(output.mean().item())
        else:
            self.outputs[type(module).__name__].append(output)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watch = Watch(model, is_healthy)
    for _ in range(160):
        inputs = torch.randn(256, 32)
        loss = functional.l1_loss(model(inputs).squeeze(1), inputs.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(watch.means))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
