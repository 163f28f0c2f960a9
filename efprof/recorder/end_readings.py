"""Which steps of a sprint have their memory read at their end."""

from math import ceil
from typing import Final

from efprof.recorder.memory import MAX_STRIDE

READING_SHARE: Final = 0.001
LEAST_READING_NS: Final = 2_000
TOUCHED_NS: Final = 20_000
"""Reading memory at a step's end costs 8 to 90 us after a heavy step (measured), 0.5 us in a loop of its own: it is
done so seldom that no more than this of a step goes to it, and to turning into a record a step of which the stopwatch
does not know all."""


class EndReadings:
    """`next_step` is the first that is to be read."""

    def __init__(self) -> None:
        self.next_step = 0
        self._last = (0, 0)

    def begin(self, number: int, at_ns: int) -> None:
        """A sprint begins with this step."""
        self._last = number, at_ns

    def cannot(self, number: int) -> None:
        """This program's steps cannot afford a reading; ask again later."""
        self.next_step = number + MAX_STRIDE

    def note(self, number: int, at_ns: int, spent_ns: int) -> None:
        """Memory was read at the end of this step."""
        (before, before_ns), self._last = self._last, (number, at_ns)
        step_ns = (at_ns - before_ns) / max(1, number - before)
        affordable_ns = max(LEAST_READING_NS, READING_SHARE * step_ns)
        self.next_step = number + min(MAX_STRIDE, max(1, ceil((spent_ns + TOUCHED_NS) / affordable_ns)))
