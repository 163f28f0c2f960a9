"""Writes the metrics as TensorBoard event files, where the package `tensorboard` is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from energy_flow.energy_config import EnergyConfig
from energy_flow.training.metrics_file import StepMetrics


@contextmanager
def open_event_files(
    config: EnergyConfig, folder: Path, *, first_step: int
) -> Iterator[list[Callable[[StepMetrics], None]]]:
    """What writes steps to event files in `folder`; nothing where they are off or tensorboard is not installed.

    TensorBoard is told to drop what an earlier run in the folder wrote of steps after `first_step`.
    """
    if config.runtime.tensorboard != "auto":
        yield []
        return
    try:
        summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield []
        return
    writer: Any = SummaryWriter(str(folder), purge_step=first_step + 1)

    def write(metrics: StepMetrics) -> None:
        # One record for all numbers of a step: one each, as `add_scalar` writes them, took six times as long and more.
        values = [summary.Value(tag=tag, simple_value=number) for tag, number in _numbers(metrics)]
        writer.file_writer.add_summary(summary(value=values), metrics.step)

    try:
        yield [write]
    finally:
        writer.close()


def _numbers(metrics: StepMetrics) -> Iterator[tuple[str, float]]:
    """Every number of a step with its tag, under `loss/`, `time/`, `memory/` or `training/`."""
    for name, tag in _TAGS.items():
        value = getattr(metrics, name)
        if isinstance(value, int | float):
            yield tag, float(value)


def _group(name: str) -> str:
    if name.endswith("_loss") or name == "loss":
        return "loss"
    if name.endswith("_bytes"):
        return "memory"
    return "time" if name.endswith(("_ms", "_per_second")) else "training"


_TAGS: Final = {
    field.name: f"{_group(field.name)}/{field.name}" for field in fields(StepMetrics) if field.name != "step"
}
