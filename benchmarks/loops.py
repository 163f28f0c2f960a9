"""Four training loops of different kinds, each timing its own steps: `python -m benchmarks.loops NAME STEPS`."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], None]


def mlp() -> Step:
    """A small perceptron: a step of about a millisecond, the hardest case for a recorder."""
    return _classify(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)), torch.randn(128, 128), 10)


def transformer() -> Step:
    """Two encoder layers over 64 tokens."""
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    return _classify(nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 128, 10)), torch.randn(8, 64, 128), 10)


def convolutions() -> Step:
    """Three convolutions over small pictures."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return _classify(
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)),
        torch.randn(16, 3, 32, 32),
        10,
    )


def energy_flow() -> Step:
    """The trainer beside us, in its `debug` configuration."""
    from energy_flow.config_parsing import load_config
    from energy_flow.data.dataset import open_or_build_dataset
    from energy_flow.data.loader import build_loader
    from energy_flow.model import build_model

    config = load_config("debug", assignments=["training.steps=1000000"])
    dataset = open_or_build_dataset(config, Path("data/energy_flow/debug"))
    batches = iter(build_loader(config, dataset, torch.device("cpu")))
    model = build_model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = model(next(batches)).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


LOOPS = {"mlp": mlp, "transformer": transformer, "convolutions": convolutions, "energy_flow": energy_flow}


def run(name: str, num_steps: int) -> list[float]:
    """Milliseconds of each step of a loop."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    step = LOOPS[name]()
    times = []
    for _ in range(num_steps):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    return times


def _classify(model: nn.Module, inputs: torch.Tensor, num_classes: int) -> Step:
    labels = torch.randint(0, num_classes, (len(inputs),))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
