"""Metrics of every step, written as JSON lines a step late, so that no step waits for the device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor

from energy_flow.late_read import LateRead, Values
from energy_flow.model import Losses
from energy_flow.training.device_monitor import DeviceReading
from energy_flow.training.epoch_summary import Epochs, EpochSummary, StepOutcome
from energy_flow.training.gradient_control import GradientReport, SkipReason
from energy_flow.training.metrics_file import MetricsFile, StepMetrics, past_steps
from energy_flow.training.progress import BatchProgress
from energy_flow.training.stage_times import NoClock, Span, StageTimes

_SKIP_REASONS: Final = {
    SkipReason.TAKEN: None,
    SkipReason.LOSS_NOT_FINITE: "loss not finite",
    SkipReason.GRADIENT_NOT_FINITE: "gradient not finite",
}

_ON_DEVICE: Final = (*Losses._fields, *GradientReport._fields)
"""What travels from the device each step, as one tensor."""

_logger = logging.getLogger(__name__)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _log_epoch(summary: EpochSummary) -> None:
    _logger.info("%s", summary)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Where the metrics come from beside the training step itself."""

    stages: StageTimes = field(default_factory=lambda: StageTimes(NoClock()))
    read_device: Callable[[], DeviceReading] = DeviceReading
    mean_over_processes: Callable[[Tensor], Tensor] = _same  # of losses, on the device, without waiting for it
    world_size: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Listeners:
    """Who is told of the metrics as they are written."""

    steps: Sequence[Callable[[StepMetrics], None]] = ()  # each step
    epoch: Callable[[EpochSummary], None] = _log_epoch  # each epoch, when its last step is written
    progress: BatchProgress | None = None  # each micro-batch, at once


@dataclass(frozen=True, kw_only=True, slots=True)
class _HostPart:
    """What the host knows of a step when it ends."""

    step: int
    num_samples: int
    wait_ms: float
    step_ms: float
    spans: list[Span]
    device: DeviceReading


class MetricsLog:
    """Collects the parts of each step and writes them out once the device's part has arrived.

    `stages` times the step's stages: `with metrics.stages.forward(): ...`.
    """

    def __init__(
        self,
        file: Path | None,
        *,
        log_interval: int = 10,
        say: Callable[[StepMetrics], None] | None = None,
        first_step: int = 0,
        batches_per_epoch: int | None = None,
        accumulation: int = 1,
        sources: Sources | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        """Append to `file`, whose lines after step `first_step` are dropped; without a file nothing is written.

        `say` is given every `log_interval`-th step. Epochs need the micro-batches that this process takes in one.
        """
        self._log_interval, self._say = log_interval, say
        self._sources, self._listeners = sources or Sources(), listeners or Listeners()
        self.stages = self._sources.stages
        self._file = MetricsFile(file, first_step=first_step) if file else None
        past = past_steps(file) if file else ()
        self._epochs = (
            Epochs(batches_per_epoch=batches_per_epoch, accumulation=accumulation, past=past)
            if batches_per_epoch
            else None
        )
        self._under_way: LateRead[_HostPart] = LateRead()
        self._losses: list[Tensor] = []
        self._num_samples = 0
        self._wait_ms = 0.0
        self._device = DeviceReading()
        self._newest_loss: float | None = None
        self._last_step_end = self._last_batch_end = time.perf_counter()

    def __enter__(self) -> Self:
        """Start the clock."""
        self._start_clock()
        return self

    def __exit__(self, *error: object) -> None:
        """Write what is still under way, and close the file."""
        try:
            self._write(self._under_way.drain())
        finally:
            if self._file:
                self._file.close()

    def batch_fetched(self) -> None:
        """Note that the batch is at hand."""
        self._wait_ms += (time.perf_counter() - self._last_batch_end) * 1000

    def batch_done(self, losses: Losses, num_samples: int) -> None:
        """Keep a micro-batch's losses, on the device and without their graph."""
        self._losses.append(torch.stack([part.detach().float() for part in losses]))
        self._num_samples += num_samples
        if self._listeners.progress:
            self._listeners.progress.batch_done(loss=self._newest_loss, memory_bytes=self._device.in_use_bytes)
        self._last_batch_end = time.perf_counter()

    def step_done(self, step: int, gradient: GradientReport) -> None:
        """Send the numbers of attempted step `step` on their way, and write those of earlier ones that have arrived."""
        losses = self._sources.mean_over_processes(torch.stack(self._losses).mean(dim=0))
        on_device = torch.cat([losses, torch.stack([part.float() for part in gradient])])
        now = time.perf_counter()
        self._device = self._sources.read_device()
        host = _HostPart(
            step=step,
            num_samples=self._num_samples * self._sources.world_size,
            wait_ms=self._wait_ms,
            step_ms=(now - self._last_step_end) * 1000,
            spans=self.stages.take(),
            device=self._device,
        )
        self._write(self._under_way.arrived())
        self._under_way.push(host, on_device)
        self._losses, self._num_samples, self._wait_ms = [], 0, 0.0
        self._last_step_end = self._last_batch_end = now

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Around a checkpoint or a validation pass: the file is whole before it, and its time counts to no step.

        A checkpoint written within has all its steps' lines on the disk. Waits for the device.
        """
        self._write(self._under_way.drain())
        if self._file:
            self._file.sync()
        yield
        self._start_clock()

    def _start_clock(self) -> None:
        self._last_step_end = self._last_batch_end = time.perf_counter()
        if self._listeners.progress:
            self._listeners.progress.start()

    def _write(self, arrived: list[tuple[_HostPart, Values]]) -> None:
        for host, values in arrived:
            metrics = self._metrics(host, values)
            self._newest_loss = metrics.loss
            if self._file:
                self._file.write(metrics)
            for listener in self._listeners.steps:
                listener(metrics)
            if host.step % self._log_interval == 0:
                self._tell(metrics)
            self._add_to_epoch(metrics)

    def _tell(self, metrics: StepMetrics) -> None:
        if self._file:
            self._file.flush()
        if self._say:
            self._say(metrics)

    def _add_to_epoch(self, metrics: StepMetrics) -> None:
        if self._epochs is None:
            return
        summary = self._epochs.add(StepOutcome(*(getattr(metrics, name) for name in StepOutcome._fields)))
        if summary:
            self._listeners.epoch(summary)

    def _metrics(self, host: _HostPart, values: Values) -> StepMetrics:
        numbers = dict(zip(_ON_DEVICE, map(float, values), strict=True))
        global_step = int(numbers["global_step"])
        stages = self.stages.read(host.spans)
        return StepMetrics(
            step=host.step,
            global_step=global_step,
            epoch=self._epochs.epoch_of(host.step) if self._epochs else None,
            loss=numbers["total"],
            embedding_loss=numbers["embedding"],
            surface_loss=numbers["surface"],
            text_loss=numbers["text"],
            landed_share=numbers["landed_share"],
            flow_steps=numbers["flow_steps"],
            gradient_norm=numbers["norm"],
            is_skipped=bool(numbers["is_skipped"]),
            skip_reason=_SKIP_REASONS[SkipReason(int(numbers["reason"]))],
            num_skipped=host.step - global_step,
            learning_rate=numbers["learning_rate"],
            loss_scale=numbers["scale"],
            wait_ms=host.wait_ms,
            step_ms=host.step_ms,
            samples_per_second=1000 * host.num_samples / host.step_ms,
            forward_ms=stages.forward,
            backward_ms=stages.backward,
            optimizer_ms=stages.optimizer,
            energy_ms=stages.energy,
            text_bridge_ms=stages.text_bridge,
            allocated_bytes=host.device.allocated_bytes,
            reserved_bytes=host.device.reserved_bytes,
            gpu_used_bytes=host.device.gpu_used_bytes,
            gpu_utilisation_percent=host.device.gpu_utilisation_percent,
            host_rss_bytes=host.device.host_rss_bytes,
        )
