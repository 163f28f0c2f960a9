"""Metrics of every step, written as JSON lines a step late, so that no step waits for the device."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from energy_flow.errors import EnergyFlowError
from energy_flow.late_read import LateRead, Values
from energy_flow.model import Losses
from energy_flow.training.gradient_control import GradientReport


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """One optimizer step as it is logged."""

    step: int
    loss: float
    embedding_loss: float
    surface_loss: float
    text_loss: float
    landed_share: float
    flow_steps: float
    gradient_norm: float
    is_skipped: bool
    wait_ms: float  # host time from the end of the last step to this one's batch at hand
    step_ms: float  # host time of the whole step, the wait included
    samples_per_second: float

    def __str__(self) -> str:
        """Say in one line what a person watches."""
        skipped = "  skipped: gradient not finite" if self.is_skipped else ""
        return (
            f"step {self.step:>5}  loss {self.loss:.4f}  embedding {self.embedding_loss:.4f}  "
            f"text {self.text_loss:.3f}  gradient {self.gradient_norm:.2f}  {self.step_ms:.0f} ms "
            f"(wait {self.wait_ms:.1f} ms){skipped}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _HostPart:
    """What the host knows of a step when it ends."""

    step: int
    num_samples: int
    wait_ms: float
    step_ms: float


class MetricsLog:
    """Collects the parts of each step and writes them out once the device's part has arrived.

    `say` is given every `log_interval`-th step as it is written.
    """

    def __init__(self, file: Path, *, log_interval: int, say: Callable[[StepMetrics], None]) -> None:
        """Append to `file`, which is made if need be."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = file.open("a", encoding="utf-8")
        except OSError as error:
            raise EnergyFlowError(f"cannot write metrics to {file}: {error.strerror}") from error
        self._log_interval, self._say = log_interval, say
        self._under_way: LateRead[_HostPart] = LateRead()
        self._losses: list[torch.Tensor] = []
        self._num_samples = 0
        self._wait_ms = 0.0
        self._last_step_end = self._last_batch_end = time.perf_counter()

    def __enter__(self) -> Self:
        """Start the clock."""
        self._last_step_end = self._last_batch_end = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is still under way, and close the file."""
        self._write(self._under_way.drain())
        self._stream.close()

    def batch_fetched(self) -> None:
        """Note that the batch is at hand."""
        self._wait_ms += (time.perf_counter() - self._last_batch_end) * 1000

    def batch_done(self, losses: Losses, num_samples: int) -> None:
        """Keep a micro-batch's losses, on the device and without their graph."""
        self._losses.append(torch.stack([part.detach().float() for part in losses]))
        self._num_samples += num_samples
        self._last_batch_end = time.perf_counter()

    def step_done(self, step: int, gradient: GradientReport) -> None:
        """Send the step's numbers on their way, and write those of earlier steps that have arrived."""
        losses = torch.stack(self._losses).mean(dim=0)
        on_device = torch.cat([losses, torch.stack([gradient.norm.float(), gradient.is_skipped.float()])])
        now = time.perf_counter()
        host = _HostPart(
            step=step,
            num_samples=self._num_samples,
            wait_ms=self._wait_ms,
            step_ms=(now - self._last_step_end) * 1000,
        )
        self._write(self._under_way.arrived())
        self._under_way.push(host, on_device)
        self._losses, self._num_samples, self._wait_ms = [], 0, 0.0
        self._last_step_end = self._last_batch_end = now

    def _write(self, arrived: list[tuple[_HostPart, Values]]) -> None:
        for host, values in arrived:
            metrics = _metrics(host, values)
            self._stream.write(json.dumps(asdict(metrics)) + "\n")
            if host.step % self._log_interval == 0:
                self._stream.flush()
                self._say(metrics)


def _metrics(host: _HostPart, values: Values) -> StepMetrics:
    loss, embedding, surface, text, landed_share, flow_steps, norm, is_skipped = map(float, values)
    return StepMetrics(
        step=host.step,
        loss=loss,
        embedding_loss=embedding,
        surface_loss=surface,
        text_loss=text,
        landed_share=landed_share,
        flow_steps=flow_steps,
        gradient_norm=norm,
        is_skipped=bool(is_skipped),
        wait_ms=host.wait_ms,
        step_ms=host.step_ms,
        samples_per_second=1000 * host.num_samples / host.step_ms,
    )
