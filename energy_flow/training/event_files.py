"""Writes the metrics as TensorBoard event files, where the package `tensorboard` is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final, Protocol

from energy_flow.energy_config import EnergyConfig
from energy_flow.training.metrics import StepMetrics

_NAMES: Final = tuple(field.name for field in fields(StepMetrics) if field.name != "step")


class ScalarWriter(Protocol):
    """What is needed of `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Write one number."""

    def close(self) -> object:
        """Write what is still held back."""


class EventFiles:
    """Every number of every step as a scalar, under `loss/`, `time/`, `memory/` or `training/`."""

    def __init__(self, writer: ScalarWriter) -> None:
        """Write to `writer`."""
        self._writer = writer

    def write(self, metrics: StepMetrics) -> None:
        """Write a step; what has no number is left out."""
        for name in _NAMES:
            value = getattr(metrics, name)
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{_group(name)}/{name}", float(value), metrics.step)


@contextmanager
def open_event_files(
    config: EnergyConfig, folder: Path, *, first_step: int
) -> Iterator[list[Callable[[StepMetrics], None]]]:
    """What writes steps to event files in `folder`; nothing where they are off or tensorboard is not installed.

    TensorBoard is told to drop what an earlier run in the folder wrote of steps after `first_step`.
    """
    writer = _new_writer(folder, first_step) if config.runtime.tensorboard == "auto" else None
    if writer is None:
        yield []
        return
    try:
        yield [EventFiles(writer).write]
    finally:
        writer.close()


def _new_writer(folder: Path, first_step: int) -> ScalarWriter | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    writer: ScalarWriter = SummaryWriter(str(folder), purge_step=first_step + 1)
    return writer


def _group(name: str) -> str:
    if name.endswith("_loss") or name == "loss":
        return "loss"
    if name.endswith("_bytes"):
        return "memory"
    return "time" if name.endswith(("_ms", "_per_second")) else "training"
