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

COSTLY_READING_NS: Final = 1_000
"""The same where a heap full of holes takes long to read, as that of a program that leaks: it is read more seldom than
every `MAX_STRIDE` steps, but it is. Without, a run of some seconds had no reading after its first ones but one every
2.5 seconds, and a leak of 80 MiB was not told."""

MAX_COSTLY_STRIDE: Final = 20 * MAX_STRIDE
"""One reading that the machine interrupted must not be the last."""

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

    def note(self, number: int, at_ns: int, spent_ns: int) -> None:
        """Memory was read at the end of this step."""
        (before, before_ns), self._last = self._last, (number, at_ns)
        step_ns = (at_ns - before_ns) / max(1, number - before)
        affordable_ns = max(SHORT_READING_NS, READING_SHARE * step_ns)
        if step_ns < SHORT_STEP_NS and number >= NUM_FIRST_STEPS:
            affordable_ns = SHORT_READING_NS
        stride = max(1, ceil((spent_ns + TOUCHED_NS) / affordable_ns))
        if stride > MAX_STRIDE and step_ns < SHORT_STEP_NS:
            stride = ceil((spent_ns + TOUCHED_NS) / COSTLY_READING_NS)
        self._watch.memory_due = number + min(stride, MAX_COSTLY_STRIDE)
