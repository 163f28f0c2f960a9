"""Ten training loops of different kinds, plain enough that every recorder sees what it was made for."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

NUM_BATCHES = 10_000_000
"""More than any measurement asks for: no loop comes to the end of its loader."""


@dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """A loop as `for batch in batches: train(batch)`, which whoever measures it writes out."""

    model: nn.Module
    batches: Iterator[Any]
    train: Callable[[Any], None]


class SameBatch(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """One batch, again and again: fetching it goes through a loader and costs next to nothing."""

    def __init__(self, inputs: torch.Tensor, num_classes: int) -> None:
        self.batch = (inputs, torch.randint(0, num_classes, (len(inputs),), device=inputs.device))

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batch


def mlp(device: torch.device) -> TrainingLoop:
    """A small perceptron: a step of about two milliseconds, the hardest case for a recorder."""
    return _classify(_perceptron(), torch.randn(96, 256), device)


def transformer(device: torch.device) -> TrainingLoop:
    """Three encoder layers over 64 tokens: 30 ms on one core."""
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)
    return _classify(nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 128, 10)), torch.randn(8, 64, 128), device)


def convolutions(device: torch.device) -> TrainingLoop:
    """Two convolutions over small pictures: 28 ms on one core."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    return _classify(model, torch.randn(64, 3, 32, 32), device)


def gan(device: torch.device) -> TrainingLoop:
    """A discriminator and a generator, each with an optimizer of its own, updated by turns on each batch: 3 ms."""
    generator = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256)).to(device)
    critic = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
    of_generator, of_critic = (torch.optim.Adam(model.parameters(), lr=1e-4) for model in (generator, critic))

    def train(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        inputs, _ = batch
        made = generator(torch.randn(len(inputs), 64, device=device))
        loss = functional.softplus(-critic(inputs)).mean() + functional.softplus(critic(made.detach())).mean()
        of_critic.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        of_critic.step()
        loss = functional.softplus(-critic(made)).mean()
        of_generator.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        of_generator.step()

    batches = _same_batches(torch.randn(96, 256), device)
    return TrainingLoop(model=nn.ModuleList([generator, critic]), batches=batches, train=train)


def by_hand(device: torch.device) -> TrainingLoop:
    """The perceptron, updated without an optimizer."""
    model = _perceptron().to(device)

    def train(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        inputs, labels = batch
        functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=1e-4)
                    parameter.grad = None

    return TrainingLoop(model=model, batches=_same_batches(torch.randn(96, 256), device), train=train)


def scaler(device: torch.device) -> TrainingLoop:
    """The perceptron with an enabled gradient scaler."""
    model = _perceptron().to(device)
    optimizer, scaling = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.amp.GradScaler(device.type)

    def train(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        inputs, labels = batch
        loss = functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        scaling.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaling.step(optimizer)
        scaling.update()

    return TrainingLoop(model=model, batches=_same_batches(torch.randn(96, 256), device), train=train)


def teacher(device: torch.device) -> TrainingLoop:
    """The perceptron learns from a teacher, which is called without gradients in each step."""
    of_it = _perceptron().to(device).eval()

    def wanted(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            answer: torch.Tensor = of_it(inputs)
            return answer.softmax(dim=1)

    return _classify(_perceptron(), torch.randn(96, 256), device, wanted=wanted)


def accumulation(device: torch.device) -> TrainingLoop:
    """Four micro-batches make a step of the perceptron."""
    return _classify(_perceptron(), torch.randn(96, 256), device, micro_batches=4)


def closures(device: torch.device) -> TrainingLoop:
    """L-BFGS calls back for its gradients, up to four times in a step."""
    model = _perceptron().to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=4, history_size=4)

    def train(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        inputs, labels = batch

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]

    return TrainingLoop(model=model, batches=_same_batches(torch.randn(96, 256), device), train=train)


def energy_flow(device: torch.device) -> TrainingLoop:
    """The trainer beside us, in its `debug` configuration, as its own command drives it.

    Its loader has one batch in each epoch and its weights stay as they are: flows that travel longer in one step than
    in the next made steps differ by a tenth (measured), which hid what recording adds.
    """
    from energy_flow.config_parsing import load_config
    from energy_flow.data.dataset import build_dataset
    from energy_flow.data.loader import build_loader
    from energy_flow.training.energy_trainer import EnergyTrainer
    from energy_flow.training.metrics import MetricsLog

    alike = ["data.max_pairs=8", "training.validation_share=0", "optimizer.learning_rate=0"]
    config = load_config("debug", assignments=["training.steps=1000000", f"runtime.device={device.type}", *alike])
    out = Path(tempfile.mkdtemp(prefix="energy_flow-"))
    dataset = build_dataset(config, out / "data")
    trainer = EnergyTrainer(config, out=out)
    trainer.model.train()
    metrics = MetricsLog(out / "metrics.jsonl", log_interval=config.training.log_interval).__enter__()

    def train(batch: Any) -> None:
        metrics.batch_fetched()
        trainer.train_batch(batch, metrics)

    return TrainingLoop(model=trainer.model, batches=iter(build_loader(config, dataset, device)), train=train)


COMPARED = {
    "mlp": mlp, "transformer": transformer, "convolutions": convolutions, "gan": gan, "energy_flow": energy_flow
}  # fmt: skip
"""On these, other tools are measured too."""

LOOPS = {
    **COMPARED,
    "by_hand": by_hand, "scaler": scaler, "teacher": teacher, "accumulation": accumulation, "closures": closures,
}  # fmt: skip


def _perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10))


def _classify(
    model: nn.Module,
    inputs: torch.Tensor,
    device: torch.device,
    *,
    micro_batches: int = 1,
    wanted: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> TrainingLoop:
    batches = _same_batches(inputs, device)
    optimizer = torch.optim.AdamW(model.to(device).parameters(), lr=1e-4)

    def train(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        for number in range(micro_batches):
            inputs, labels = next(batches) if number else batch
            loss = functional.cross_entropy(model(inputs), labels if wanted is None else wanted(inputs))
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return TrainingLoop(model=model, batches=batches, train=train)


def _same_batches(inputs: torch.Tensor, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return iter(DataLoader(SameBatch(inputs.to(device), 10), batch_size=None))
