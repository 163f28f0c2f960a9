"""Writes steps as they end, and again when the device has told what it still owed them."""

import time
from collections.abc import Callable

from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.light_steps import LightSteps
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.writing import LineWriter

MAX_LATE_STEPS = 256
"""Steps whose numbers the device still owes; a queue this long means that it never answers."""

MAX_WAIT_S = 5.0
"""For those numbers, once the training is over."""


class StepLines:
    """Writes full steps; `light` gives the light ones, which write themselves and may await numbers as well."""

    def __init__(self, lines: LineWriter, light: Callable[[], LightSteps]) -> None:
        self._lines = lines
        self._light = light
        self._late: list[tuple[OpenStep, StepRecord]] = []

    def write(self, step: OpenStep, record: StepRecord) -> None:
        """At once: a process that is killed must have lost no step. What the device still owes it is written again."""
        self._lines.write(record)
        if step.late:
            self._late.append((step, record))
        self._write_late()

    def await_late(self) -> None:
        """The training is over: now the device may be waited for, but not for ever, since it may have failed."""
        end = time.monotonic() + MAX_WAIT_S
        self._write_late()
        while (self._late or self._light().awaits_device) and time.monotonic() < end:
            time.sleep(0.001)
            self._write_late()

    def _write_late(self) -> None:
        self._light().write_arrived()  # of those before: the first bad number is the one to be told of
        while self._late:
            step, record = self._late[0]
            step.late = [arrives for arrives in step.late or () if not arrives()]
            if step.late and len(self._late) < MAX_LATE_STEPS:
                return
            self._lines.write(record)
            del self._late[0]
