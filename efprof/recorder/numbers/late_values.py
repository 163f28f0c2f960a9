"""Numbers on their way from a device to the host: nobody waits for them."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from efprof.recorder.loop.device import DeviceEvents
from efprof.recorder.session.shell import Guard

# Before the waiting_calls collector wraps it: our own reads are not the user's.
read_values = torch.Tensor.tolist

ROW_SIZE = 256
"""Of one row, in numbers: as many as light steps have losses."""
NUM_ROWS = 64
"""That are made at once, since the driver may wait for the device as it pins memory."""

Answer = Callable[[], list[float] | None]
"""The numbers, once; empty as long as they have not arrived, None where the device failed."""


class OnDevice(NamedTuple):
    """A number, and the stream that makes it: on no other can it be copied."""

    value: torch.Tensor
    stream: Any


Send = Callable[[Sequence[OnDevice]], Answer]

Late = list[Callable[[], bool]]
"""What a step waits for: each says whether it has come, or never will."""


def on_device(value: torch.Tensor) -> OnDevice:
    return OnDevice(value.detach().reshape(()), torch.cuda.current_stream(value.device))


class LateValues:
    """Copies them to the host, each on its own stream; rows of pinned memory and events are used again."""

    def __init__(self, guard: Guard = lambda function: function) -> None:
        self._guard = guard
        self._start: Callable[[Sequence[OnDevice]], Answer | None] = guard(self._copy)
        self._rows: list[torch.Tensor] = []
        self._events = DeviceEvents()

    def send(self, values: Sequence[OnDevice]) -> Answer:
        pieces = [values[first : first + ROW_SIZE] for first in range(0, len(values), ROW_SIZE)]
        answers, told = [self._start(piece) or (lambda: None) for piece in pieces], list[float]()

        def arrived() -> list[float] | None:
            while answers:
                values = answers[0]()
                if not values:
                    return values
                del answers[0]
                told.extend(values)
            return told

        return arrived

    def owe(self, late: Late, values: Sequence[OnDevice], take: Callable[[list[float]], None]) -> None:
        """Have `take`, which is harmless, called with them once they have come; a step waits for it by its `late`."""
        answer = self.send(values)

        def has_come() -> bool:
            if told := answer():
                take(told)
            return told != []

        late.append(has_come)

    def _copy(self, values: Sequence[OnDevice]) -> Answer:
        row, places, events = self._row(), list[int](), []
        for stream in dict.fromkeys(made.stream for made in values):
            here = [place for place, made in enumerate(values) if made.stream == stream]
            # To leave the context of another device's stream would start one on the current device.
            is_current = stream == torch.cuda.current_stream(stream.device)
            with nullcontext() if is_current else torch.cuda.stream(stream):
                numbers = torch.stack([values[place].value.to(torch.float32) for place in here])
                row[len(places) : len(places) + len(here)].copy_(numbers, non_blocking=True)
            places += here
            events.append(self._events.record(stream))

        def arrived() -> list[float]:
            if not all(event.query() for event in events):
                return []
            told = dict(zip(places, read_values(row[: len(places)]), strict=True))
            self._rows.append(row)
            self._events.give_back(events)
            return [told[place] for place in range(len(places))]

        return self._guard(arrived)

    def _row(self) -> torch.Tensor:
        if not self._rows:
            with torch.inference_mode(mode=False):  # what is made within it could not be written later
                self._rows += torch.empty((NUM_ROWS, ROW_SIZE), dtype=torch.float32, device="cpu", pin_memory=True)
        return self._rows.pop()
