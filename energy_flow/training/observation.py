"""Builds all that watches a run, by its configuration: metrics, messages, event files, progress, stages, device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn

from energy_flow.energy_config import EnergyConfig
from energy_flow.logs import logging_through
from energy_flow.processes import ALONE, Processes, mean_over_processes
from energy_flow.training.device_monitor import DeviceMonitor
from energy_flow.training.event_files import open_event_files
from energy_flow.training.metrics import Listeners, MetricsLog, Sources
from energy_flow.training.metrics_file import StepMetrics
from energy_flow.training.progress import BatchProgress, ProgressLine
from energy_flow.training.stage_times import stage_times
from energy_flow.training.step_messages import StepMessages

METRICS_NAME, EVENTS_NAME = "metrics.jsonl", "events"


@contextmanager
def observed(
    config: EnergyConfig,
    *,
    out: Path,
    model: nn.Module,
    device: torch.device,
    batches_per_epoch: int,
    first_step: int = 0,
    processes: Processes = ALONE,
    say: Callable[[StepMetrics], None] | None = None,
) -> Iterator[MetricsLog]:
    """Metrics of a run from attempted step `first_step` on; the first process writes them to the folder `out`.

    `batches_per_epoch` are the micro-batches that each process takes; `say` is given every `log_interval`-th step.
    """
    with ExitStack() as stack:
        sources = Sources(
            stages=stack.enter_context(stage_times(model, device)),
            read_device=stack.enter_context(DeviceMonitor(device, config.runtime)).read,
            mean_over_processes=lambda losses: mean_over_processes(losses, processes),
            world_size=processes.world_size,
        )
        if not processes.is_first:
            yield stack.enter_context(MetricsLog(None, sources=sources))
            return
        messages = StepMessages(config.optimizer, log_interval=config.training.log_interval, first_step=first_step)
        events = stack.enter_context(open_event_files(config, out / EVENTS_NAME, first_step=first_step))
        metrics = MetricsLog(
            out / METRICS_NAME,
            log_interval=config.training.log_interval,
            say=say,
            first_step=first_step,
            batches_per_epoch=batches_per_epoch,
            accumulation=config.training.accumulation,
            sources=sources,
            listeners=Listeners(
                steps=[messages.tell, *events],
                progress=stack.enter_context(_progress(config, batches_per_epoch, first_step)),
            ),
        )
        yield stack.enter_context(metrics)


@contextmanager
def _progress(config: EnergyConfig, batches_per_epoch: int, first_step: int) -> Iterator[BatchProgress]:
    """The progress line, which log lines make room for; nothing of it is left behind."""
    line = ProgressLine(config.runtime.progress)
    accumulation = config.training.accumulation
    with logging_through(line, instead_of=line.stream):
        progress = BatchProgress(
            line,
            first_batch=first_step * accumulation,
            num_batches=config.training.steps * accumulation,
            batches_per_epoch=batches_per_epoch,
        )
        try:
            yield progress
        finally:
            line.clear()
