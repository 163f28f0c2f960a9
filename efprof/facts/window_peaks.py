"""The highest instant inside a step, which the boundaries of its stages miss: known where allocations were recorded."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import StepRecord
from efprof.facts.live_memory import LiveMemory, LiveWindow
from efprof.facts.run import Run
from efprof.facts.step_times import StepTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPeaks:
    """Bytes in use at the highest instant of each allocation window, what was there before it included."""

    peaks: tuple[int, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no allocations were recorded."""
        records = [time.record for time in run.get(StepTimes).every if time.record.memory]
        found = [(bytes_before(window, records), window.peak_bytes) for window in run.get(LiveMemory).windows]
        return cls(peaks=tuple(before + peak for before, peak in found if before is not None))


def bytes_before(window: LiveWindow, records: Sequence[StepRecord]) -> int | None:
    """A window counts from zero; a boundary within it, at which both are known, tells what was there besides.

    The last one up to the peak: what is older than the window may have been freed by then, which no event of it tells.
    """
    times = [event.time_ns for event in window.events]
    known = [
        (bisect_right(times, record.started_ns + round(boundary.at_us * 1000)) - 1, boundary.allocated_bytes)
        for record in records
        if record.window == _step_window(window)
        for boundary in record.memory
    ]
    if not known:
        return None
    index, allocated_bytes = max((one for one in known if one[0] <= window.peak_index), default=min(known))
    return max(0, allocated_bytes - (int(window.live_bytes[index]) if index >= 0 else 0))


def _step_window(window: LiveWindow) -> str:
    """How steps.jsonl names the profiler window that `allocations-<n>.parquet` came from."""
    return window.name.replace("allocations-", "trace-").removesuffix(".parquet")
