"""The step that is being recorded, and how it becomes a line of steps.jsonl."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from efprof.artifacts.steps import BoundaryMemory, ScalarReads, StageSpan, StepRecord
from efprof.recorder.memory import ResidentSet


@dataclass(kw_only=True, slots=True)
class OpenStep:
    """The step that is being recorded; times are `time.perf_counter_ns`."""

    number: int
    start_ns: int
    epoch_ns: int
    cpu_ns: int
    recorder_ns: int = 0
    reading_ns: int = 0
    reads_boundaries: bool = True
    spans: list[StageSpan] = field(default_factory=list)
    memory: list[BoundaryMemory] = field(default_factory=list)
    reads: dict[tuple[str, str], ScalarReads] = field(default_factory=dict)
    stepped: list[int] = field(default_factory=list)
    """The optimizers that have stepped, by `id`."""
    num_backwards: int = 0
    num_fetches: int = 0
    samples: int = 0
    has_forward: bool = False
    has_evaluation: bool = False
    loader: int | None = None
    sequence: int | None = None
    backward_site: str | None = None
    window: str | None = None
    is_skipped: bool = False
    scale: torch.Tensor | None = None
    """The gradient scaler's, after its update."""
    late: Callable[[], bool] | None = None
    """Fills in numbers that the device still owes the record; returns whether they have arrived."""


def record_of(step: OpenStep, end_ns: int, resident: ResidentSet) -> StepRecord:
    """The line that says what happened in a step that ends now."""
    return StepRecord(
        step=step.number,
        started_ns=step.epoch_ns,
        total_us=(end_ns - step.start_ns) / 1000,
        spans=step.spans,
        memory=step.memory,
        cpu_us=(time.process_time_ns() - step.cpu_ns) / 1000,
        rss_bytes=resident.bytes_at(end_ns),
        micro_batches=step.num_backwards,
        samples=step.samples,
        recorder_us=step.recorder_ns / 1000,
        reads=list(step.reads.values()),
        is_skipped=step.is_skipped,
        backward_site=step.backward_site,
        loader=step.loader,
        sequence=step.sequence,
        window=step.window,
    )


def num_samples(batch: object) -> int:
    """The first dimension of the first tensor found in a batch; 0 where there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    elif hasattr(batch, "__dataclass_fields__"):
        batch = tuple(getattr(batch, name) for name in batch.__dataclass_fields__)
    if isinstance(batch, list | tuple):
        for item in batch:
            if isinstance(item, torch.Tensor):
                return item.shape[0] if item.dim() else 1
    return 0
