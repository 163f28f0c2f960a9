"""Which steps of a sprint have their memory read at their end."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from efprof.recorder.memory import MAX_STRIDE, SHORT_STEP_NS

if TYPE_CHECKING:
    from efprof.recorder.stopwatch import Stopwatch
    from efprof.recorder.stopwatches import NoStopwatch

READING_SHARE: Final = 0.001
SHORT_READING_NS: Final = 2_000
"""In a short step, which has an amount for all of the recorder in place of a share."""

NUM_FIRST_STEPS: Final = 500
"""Up to here a short step may cost its share, too: a run that has no more needs its readings sooner."""

TOUCHED_NS: Final = 20_000
"""Reading memory at a step's end costs 8 to 90 us after a heavy step (measured), 0.5 us in a loop of its own: it is
done so seldom that no more than this of a step goes to it, and to turning into a record a step of which the stopwatch
does not know all."""


class EndReadings:
    """Tells the stopwatch which step is the first that is to be read."""

    def __init__(self, watch: Stopwatch | NoStopwatch) -> None:
        self._watch = watch
        self._last = (0, 0)

    def begin(self, number: int, at_ns: int) -> None:
        """A sprint begins with this step."""
        self._last = number, at_ns

    def cannot(self, number: int) -> None:
        """This program's steps cannot afford a reading; ask again later."""
        self._watch.memory_due = number + MAX_STRIDE

    def note(self, number: int, at_ns: int, spent_ns: int) -> None:
        """Memory was read at the end of this step."""
        (before, before_ns), self._last = self._last, (number, at_ns)
        step_ns = (at_ns - before_ns) / max(1, number - before)
        affordable_ns = max(SHORT_READING_NS, READING_SHARE * step_ns)
        if step_ns < SHORT_STEP_NS and number >= NUM_FIRST_STEPS:
            affordable_ns = SHORT_READING_NS
        self._watch.memory_due = number + min(MAX_STRIDE, max(1, ceil((spent_ns + TOUCHED_NS) / affordable_ns)))
