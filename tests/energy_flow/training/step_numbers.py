"""Steps made of plain numbers, for the tests of what is written of them."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from energy_flow.model import Losses
from energy_flow.training.gradient_control import GradientReport, SkipReason
from energy_flow.training.metrics import MetricsLog
from energy_flow.training.metrics_file import StepMetrics


def losses(total: float) -> Losses:
    parts = {name: torch.tensor(0.5) for name in Losses._fields}
    return Losses(**{**parts, "total": torch.tensor(total)})


def report(
    step: int, *, norm: float = 1.0, reason: SkipReason = SkipReason.TAKEN, num_skipped: int = 0
) -> GradientReport:
    values = {
        "norm": norm,
        "is_skipped": reason != SkipReason.TAKEN,
        "reason": reason,
        "learning_rate": 0.25,
        "scale": 1024.0,
        "global_step": step - num_skipped,
    }
    return GradientReport(**{name: torch.tensor(value) for name, value in values.items()})


def metrics(step: int, **changes: Any) -> StepMetrics:
    """A healthy step as it is logged, but for `changes`."""
    said: list[StepMetrics] = []
    with MetricsLog(None, log_interval=1, say=said.append) as log:
        take_steps(log, [step])
    fields = {name: getattr(said[0], name) for name in StepMetrics.__dataclass_fields__}
    return StepMetrics(**{**fields, "gradient_norm": 1.0, **changes})


def take_steps(
    log: MetricsLog,
    steps: Iterable[int],
    *,
    accumulation: int = 1,
    loss_of: Callable[[int], float] = lambda step: 1 / step,
) -> None:
    """Steps with losses of their own, each of `accumulation` micro-batches of 8 texts."""
    for step in steps:
        for _ in range(accumulation):
            log.batch_fetched()
            log.batch_done(losses(loss_of(step)), num_samples=8)
        log.step_done(step, report(step, norm=2.0 * step))


def without_timings(file: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without what is measured and so differs from run to run."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    measured = ("_ms", "_bytes", "_percent", "_per_second")
    return [{name: value for name, value in line.items() if not name.endswith(measured)} for line in lines]
