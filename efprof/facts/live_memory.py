"""Allocation windows replayed: how many bytes were alive at every instant, and which blocks those were."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from efprof.artifacts.allocations import AllocationEvent, AllocationWindow, allocation_paths, read_allocations
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.run import Run
from efprof.model import NotRecorded


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStretch:
    """One stretch of a stage: `first` is its first event's index, `end` one past its last."""

    step: int
    stage: str
    first: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveWindow:
    """One window. Arrays have one place per event; bytes count from the window's start, older blocks are unseen.

    `live_bytes[i]` are alive after event i. `released_at[i]` is the event that released the block that event i
    allocated, the number of events where none did; -1 where event i allocates nothing.
    """

    name: str
    events: tuple[AllocationEvent, ...]
    live_bytes: NDArray[np.int64]
    released_at: NDArray[np.int64]
    stretches: tuple[StageStretch, ...]

    @property
    def peak_index(self) -> int:
        """The first event after which most is alive."""
        return int(np.argmax(self.live_bytes))

    @property
    def peak_bytes(self) -> int:
        """The most that was alive at once."""
        return int(self.live_bytes[self.peak_index])

    def alive_after(self, index: int) -> list[int]:
        """The allocations that are alive after event `index`, oldest first."""
        released = self.released_at[: index + 1]
        return [int(place) for place in np.flatnonzero(released > index)]

    def stretch_of(self, index: int) -> StageStretch | None:
        """The stage that an event lies in, None between steps."""
        return next((stretch for stretch in self.stretches if stretch.first <= index < stretch.end), None)

    def stretches_of(self, step: int) -> list[StageStretch]:
        """The stages of one step in order of time."""
        return [stretch for stretch in self.stretches if stretch.step == step]

    def peak_without(self, blocks: Iterable[int], share: float) -> int:
        """The peak, had `share` of the bytes of these allocations never been there: a replay of the same events."""
        removed = np.zeros(len(self.events) + 1, dtype=np.float64)
        for block in blocks:
            num_bytes = self.events[block].num_bytes * share
            removed[block] += num_bytes
            removed[self.released_at[block]] -= num_bytes
        return int(np.max(self.live_bytes - np.cumsum(removed)[:-1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveMemory:
    """Every allocation window of the run, replayed."""

    windows: tuple[LiveWindow, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Replay all windows; raises NotRecorded where none holds an allocation."""
        records = read_steps(run.rank_folder)[0]
        windows = tuple(replay(read_allocations(path), records) for path in allocation_paths(run.rank_folder))
        filled = tuple(window for window in windows if window.events)
        if not filled:
            raise NotRecorded("allocations-<n>.parquet holds no allocation; record more steps or another window.")
        return cls(windows=filled)


def replay(window: AllocationWindow, records: Iterable[StepRecord]) -> LiveWindow:
    """Add and take away; the release of an address that was never seen belongs to an older block: nothing changes."""
    events = window.events
    changes = np.zeros(len(events), dtype=np.int64)
    released_at = np.full(len(events), -1, dtype=np.int64)
    block_at: dict[int, int] = {}
    for index, event in enumerate(events):
        previous = block_at.pop(event.address, None)
        if previous is not None:
            released_at[previous] = index
            changes[index] -= events[previous].num_bytes
        if event.num_bytes > 0:
            block_at[event.address] = index
            released_at[index] = len(events)
            changes[index] += event.num_bytes
    return LiveWindow(
        name=window.name,
        events=events,
        live_bytes=np.cumsum(changes),
        released_at=released_at,
        stretches=tuple(_stretches(events, records)),
    )


def _stretches(events: tuple[AllocationEvent, ...], records: Iterable[StepRecord]) -> Iterable[StageStretch]:
    times = [event.time_ns for event in events]
    for record in records:
        for span in record.spans:
            first = bisect_left(times, record.started_ns + round(span.start_us * 1000))
            end = bisect_left(times, record.started_ns + round(span.end_us * 1000))
            if first < end:
                yield StageStretch(step=record.step, stage=span.stage, first=first, end=end)
