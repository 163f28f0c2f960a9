"""Times stages on the device by CUDA events, without ever waiting for it."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from efprof.artifacts.steps import StepRecord
from efprof.recorder.loop.training_device import TrainingDevice


class DeviceEvents:
    """CUDA events, each of the device that it was first recorded on; those that are given back are used again."""

    def __init__(self, **settings: bool) -> None:
        """`settings` as `torch.cuda.Event` takes them."""
        self._settings = settings
        self._free: defaultdict[torch.device, list[Any]] = defaultdict(list)

    def record(self, stream: Any) -> Any:
        """One behind all that this stream was given."""
        free = self._free[stream.device]
        event = free.pop() if free else torch.cuda.Event(**self._settings)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def give_back(self, events: Iterable[Any]) -> None:
        """They have been read."""
        for event in events:
            self._free[event.device].append(event)


Mark = tuple[Any, Any]
"""The events at a stage's start and end; None where there is no device."""


class DeviceClock:
    """Records an event at each end of a stage, on the current stream of the device that the training is on then.

    `guard` makes a function harmless: once it has failed, it answers None.
    """

    def __init__(self, device: TrainingDevice, guard: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._device = device
        self._guard = guard
        self._events = DeviceEvents(enable_timing=True)
        self._record = guard(lambda device: self._events.record(torch.cuda.current_stream(device)))
        self._start: Any = None

    def open(self) -> None:
        """A stage begins."""
        self._start = None if self._device.index is None else self._record(self._device.index)

    def close(self) -> Mark:
        """It ends."""
        return self._start, None if self._start is None else self._record(self._start.device)

    def reader(self, record: StepRecord, marks: list[Mark]) -> Callable[[], bool]:
        """The step ends, whose last spans have these marks: fills `device_us` of them and of it, once the device has
        passed them all; returns whether it has. The step's own is not known where it was on several devices.
        """
        spans, first = record.spans[-len(marks) :], marks[0][0]
        last = None if first is None else self._record(first.device)

        def read() -> bool:
            timed = [(span, start, end) for span, (start, end) in zip(spans, marks, strict=False) if start and end]
            if not all(event.query() for event in (*([last] if last else ()), *(end for _, _, end in reversed(timed)))):
                return False
            if last:
                if len(timed) == len(marks) and all(start.device == first.device for _, start, _ in timed):
                    record.device_us = first.elapsed_time(last) * 1000
                self._events.give_back((last,))
            for span, start, end in timed:
                span.device_us = start.elapsed_time(end) * 1000
                self._events.give_back((start, end))
            return True

        guarded = self._guard(read)
        return lambda: guarded() is not False
