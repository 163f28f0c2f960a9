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
    """A window counts from zero; the first boundary within it, at which both are known, tells what was there before."""
    record = next((one for one in records if one.memory and one.window == _step_window(window)), None)
    if record is None:
        return None
    boundary = record.memory[0]
    instant = record.started_ns + round(boundary.at_us * 1000)
    index = bisect_right([event.time_ns for event in window.events], instant) - 1
    before = boundary.allocated_bytes - (int(window.live_bytes[index]) if index >= 0 else 0)
    return max(0, before)


def _step_window(window: LiveWindow) -> str:
    """How steps.jsonl names the profiler window that `allocations-<n>.parquet` came from."""
    return window.name.replace("allocations-", "trace-").removesuffix(".parquet")
