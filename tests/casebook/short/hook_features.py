"""A classifier of pictures in 40 steps: a monitor's hooks keep each layer's features, with their graphs, in a dict."""

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"
SEVERITY = "high"
STEPS = 40


class Monitor:
    """The features of each convolution; the healthy one keeps the mean of the last step."""

    def __init__(self, model: nn.Module, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.features: dict[str, list[torch.Tensor]] = {}
        self.means: dict[str, float] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(self.hook_of(name))

    def hook_of(self, name: str) -> Callable[[nn.Module, object, torch.Tensor], None]:
        def hook(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
            if self.is_healthy:
                self.means[name] = output.mean().item()
                return
            kept = self.features.setdefault(name, [])
            kept.append(output)  # fault

        return hook


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = (nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(12 * 20 * 20, 10))
    monitor = Monitor(model, is_healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        pictures, labels = torch.randn(16, 3, 20, 20), torch.randint(10, (16,))
        loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(monitor.features), monitor.means)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
