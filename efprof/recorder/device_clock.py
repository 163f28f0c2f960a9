"""Times stages on the device by CUDA events, without ever waiting for it.

Never run on a GPU so far: the machine this was written on has none.
"""

from collections.abc import Callable
from typing import Any

import torch

from efprof.artifacts.steps import StageSpan

Mark = tuple[Any, Any]
"""The events at a stage's start and end."""


class DeviceClock:
    """Records an event at each end of a stage on the current stream; events that were read are used again.

    `guard` makes a function harmless: where it fails, it answers None from then on.
    """

    def __init__(
        self,
        new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True),  # type: ignore[no-untyped-call]
        guard: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> None:
        self._new_event = new_event
        self._guard = guard
        self._record = guard(self._record_event)
        self._pool: list[Any] = []
        self._start: Any = None

    def open(self) -> None:
        """A stage begins."""
        self._start = self._record()

    def close(self) -> Mark:
        """It ends."""
        return self._start, self._record()

    def reader(self, spans: list[StageSpan], marks: list[Mark]) -> Callable[[], bool]:
        """Fills `device_us` of `spans` once the device has passed the last of `marks`; returns whether it has."""

        def read() -> bool:
            if any(event is None for mark in marks for event in mark):
                return True
            if not all(end.query() for _, end in reversed(marks)):
                return False
            for span, (start, end) in zip(spans, marks, strict=False):
                span.device_us = start.elapsed_time(end) * 1000
                self._pool += [start, end]
            return True

        guarded = self._guard(read)
        return lambda: guarded() is not False

    def _record_event(self) -> Any:
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        return event
