"""Times the stages of a step from outside the model, without waiting for the device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMs:
    """Milliseconds of one optimizer step, its micro-batches together; None where nothing was measured.

    Device time on CUDA, host time on the CPU. The last two are parts of `forward`.
    """

    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    energy: float | None = None
    text_bridge: float | None = None


class Clock(Protocol):
    """Marks moments, and tells the time between two of them once it can be known."""

    def mark(self) -> Any:
        """The present moment on the device."""

    def elapsed_ms(self, start: Any, end: Any) -> float | None:
        """Milliseconds between two marks, which are given up by that; None where the device is not there yet."""


class HostClock:
    """The host's clock: on the CPU an operation is over when its call returns."""

    def mark(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def elapsed_ms(self, start: float, end: float) -> float:
        """Known at once."""
        return (end - start) * 1000


class CudaClock:
    """Events on the current stream, asked and never waited for; those that were read are used again."""

    def __init__(
        self,
        new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
    ) -> None:
        """Start with an empty pool."""
        self._new_event = new_event
        self._pool: list[Any] = []

    def mark(self) -> Any:
        """An event behind the work that is under way."""
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        return event

    def elapsed_ms(self, start: Any, end: Any) -> float | None:
        """None until the device has passed both."""
        if not (start.query() and end.query()):
            return None
        elapsed = float(start.elapsed_time(end))
        self._pool += [start, end]
        return elapsed


class NoClock:
    """For a device that cannot be timed without waiting for it: MPS."""

    def mark(self) -> None:
        """Nothing."""

    def elapsed_ms(self, start: None, end: None) -> None:
        """Never known."""


class Span(NamedTuple):
    """One stretch of a stage, between two marks of the clock."""

    stage: str
    start: Any
    end: Any


class StageTimes:
    """Context managers around the stages of the training step, and hooks on the parts of the forward pass."""

    def __init__(self, clock: Clock, parts: Mapping[str, list[nn.Module]] | None = None) -> None:
        """Time by `clock`; the forward of each module in `parts` counts to the stage that it stands under."""
        self._clock = clock
        self._parts = parts or {}
        self._spans: list[Span] = []
        self._starts: dict[nn.Module, Any] = {}
        self._is_in_forward = False
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        """Set the hooks."""
        for stage, modules in self._parts.items():
            for module in modules:
                self._hooks.append(module.register_forward_pre_hook(self._part_begins))
                self._hooks.append(module.register_forward_hook(self._part_hook(stage)))
        return self

    def __exit__(self, *error: object) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around the forward pass; outside of it, in a validation pass say, the modules' hooks time nothing."""
        self._is_in_forward = True
        try:
            with self._measured("forward"):
                yield
        finally:
            self._is_in_forward = False

    def backward(self) -> _Measured:
        """Around the backward pass."""
        return self._measured("backward")

    def optimizer(self) -> _Measured:
        """Around all that turns gradients into new weights."""
        return self._measured("optimizer")

    def take(self) -> list[Span]:
        """What was measured since the last call: one step's spans, to be read once the device has passed them."""
        spans, self._spans = self._spans, []
        return spans

    def read(self, spans: list[Span]) -> StageMs:
        """The stages' times; a stage that the device has not passed yet is None."""
        total: dict[str, float] = defaultdict(float)
        unknown: set[str] = set()
        for stage, start, end in spans:
            elapsed = self._clock.elapsed_ms(start, end)
            if elapsed is None:
                unknown.add(stage)
            else:
                total[stage] += elapsed
        return StageMs(**{stage: elapsed for stage, elapsed in total.items() if stage not in unknown})

    def _measured(self, stage: str) -> _Measured:
        return _Measured(stage, self._clock, self._spans)

    def _part_begins(self, module: nn.Module, _: object) -> None:
        if self._is_in_forward:
            self._starts[module] = self._clock.mark()

    def _part_hook(self, stage: str) -> Callable[[nn.Module, object, object], None]:
        def part_ended(module: nn.Module, _: object, __: object) -> None:
            if module in self._starts:
                self._spans.append(Span(stage, self._starts.pop(module), self._clock.mark()))

        return part_ended


def stage_times(model: nn.Module, device: torch.device) -> StageTimes:
    """Times for `EnergyFlowModel`, wrapped by DistributedDataParallel or not; to be entered before training."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    parts = {"energy": [inner.flows], "text_bridge": [inner.encoder, inner.decoder]}
    return StageTimes(_clock_of(device), parts)  # type: ignore[arg-type]


class _Measured:
    """Adds a span to `spans` when its block ends, by an error too."""

    __slots__ = ("_clock", "_spans", "_stage", "_start")

    def __init__(self, stage: str, clock: Clock, spans: list[Span]) -> None:
        self._stage, self._clock, self._spans = stage, clock, spans

    def __enter__(self) -> None:
        self._start = self._clock.mark()

    def __exit__(self, *error: object) -> None:
        self._spans.append(Span(self._stage, self._start, self._clock.mark()))


def _clock_of(device: torch.device) -> Clock:
    if device.type == "cuda":
        return CudaClock()
    return HostClock() if device.type == "cpu" else NoClock()
