"""Allocation windows replayed: how many bytes were alive at every instant, which blocks those were, and what for."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cache
from itertools import zip_longest
from typing import Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from efprof.artifacts.allocations import AllocationEvent, AllocationWindow, allocation_paths, read_allocations
from efprof.artifacts.steps import StepRecord
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import NotRecorded, UnreadableInput, frozen_dataclass

Chain = tuple[str, ...]
"""The user's lines of a stack, outermost first."""

Category = Literal["activations", "gradients", "optimizer state", "inputs", "work space"]

KEPT_OF: dict[str, Category] = {
    "forward": "activations",
    "backward": "gradients",
    "optimizer": "optimizer state",
}
"""What a stage makes and leaves alive."""

CATEGORIES: tuple[Category, ...] = get_args(Category)


@frozen_dataclass
class StageStretch:
    """One stretch of a stage: `first` is its first event's index, `end` one past its last."""

    step: int
    stage: str
    first: int
    end: int


@frozen_dataclass
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
    num_unread: int
    """Later events, of which there are too many to be read."""

    @property
    def peak_index(self) -> int:
        """The first event after which most is alive."""
        return int(np.argmax(self.live_bytes))

    @property
    def peak_bytes(self) -> int:
        return int(self.live_bytes[self.peak_index])

    def alive_after(self, index: int) -> list[int]:
        """The allocations that are alive after event `index`, oldest first."""
        found: list[int] = np.flatnonzero(self.released_at[: index + 1] > index).tolist()
        return found

    def stretch_of(self, index: int) -> StageStretch | None:
        """The stage that an event lies in, None between steps."""
        return next((stretch for stretch in self.stretches if stretch.first <= index < stretch.end), None)

    def peak_without(self, blocks: Iterable[int], share: float) -> int:
        """The peak, had `share` of the bytes of these allocations never been there."""
        return self.peak_less((block, int(self.released_at[block]), share) for block in blocks)

    def peak_less(self, parts: Iterable[tuple[int, int, float]]) -> int:
        """The peak, had allocations, up to an event each, been smaller by a share: a replay of the same events."""
        removed = np.zeros(len(self.events) + 1, dtype=np.float64)
        for block, until, share in parts:
            num_bytes = self.events[block].num_bytes * share
            removed[block] += num_bytes
            removed[until] -= num_bytes
        return int(np.max(self.live_bytes - np.cumsum(removed)[:-1]))


@frozen_dataclass
class LiveMemory:
    """Every allocation window of the run, replayed."""

    windows: tuple[LiveWindow, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Replay all windows; raises NotRecorded where none holds an allocation."""
        windows = tuple(replay(read_allocations(path), run.steps) for path in allocation_paths(run.rank_folder))
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
        num_unread=window.num_unread,
    )


def chains_of(window: LiveWindow, sources: Sources) -> list[Chain]:
    """For each event the user's lines that led to it; of what backward does, those of the forward operation."""

    @cache
    def lines(stack: tuple[str, ...]) -> Chain:
        return tuple(site for site in stack if sources.is_user_code(site))

    return [lines(event.forward_stack if event.is_backward else event.stack) for event in window.events]


def sites_of(window: LiveWindow, sources: Sources) -> list[str | None]:
    """The innermost line of each; None where there is none of the user's."""
    return [chain[-1] if chain else None for chain in chains_of(window, sources)]


def categories_of(window: LiveWindow) -> tuple[Category, ...]:
    """One for each event of the window; that of a release says nothing.

    Activations outlive the forward pass that made them, gradients their backward pass, optimizer state the step of the
    optimizer; inputs are made before the forward pass begins. What ends within the stage that made it is work space.
    """
    found: list[Category] = ["inputs"] * len(window.events)
    for stretch, following in zip_longest(window.stretches, window.stretches[1:]):
        kept, end = KEPT_OF.get(stretch.stage, "inputs"), stretch.end
        if stretch.stage == "forward" and following is not None and following.step == stretch.step:
            end = following.first  # what lies between forward and backward, such as the loss, belongs to forward
        for block in range(stretch.first, end):
            found[block] = kept if kept == "inputs" or window.released_at[block] >= end else "work space"
    for block, event in enumerate(window.events):  # another thread's clock may differ a little from the stages'
        if event.is_backward and found[block] in {"activations", "inputs"}:
            found[block] = "gradients" if window.released_at[block] == len(window.events) else "work space"
    return tuple(found)


def window_peaks(run: Run) -> tuple[int, ...]:
    """Bytes in use at the highest instant of each allocation window, what was there before it included.

    Boundaries of a step's stages miss that instant. Empty where no allocations were recorded, or a file is broken, of
    which the warnings tell.
    """
    windows = windows_placed(run) if run.find(LiveMemory, UnreadableInput) else []
    return tuple(before + window.peak_bytes for window, before in windows if before is not None)


def windows_placed(run: Run) -> list[tuple[LiveWindow, int | None]]:
    """Each window with the bytes that were there when it began, None where those are not known; raises NotRecorded.

    A window counts from zero; a boundary within it, at which both are known, tells what was there besides. The last one
    up to the peak: what is older than the window may have been freed by then, which no event of it tells.
    """
    records, placed = run.steps, list[tuple[LiveWindow, int | None]]()
    for window in run.get(LiveMemory).windows:
        told = readings_before(window, records)
        last = max((one for one in told if one[0] <= window.peak_index), default=min(told, default=None))
        placed.append((window, None if last is None else last[1]))
    return placed


def readings_before(window: LiveWindow, records: Iterable[StepRecord]) -> list[tuple[int, int]]:
    """Each boundary within the window: the last event up to it, and the bytes that were there besides."""
    in_steps = window.name.replace("allocations-", "trace-").removesuffix(".parquet")  # its name in steps.jsonl
    times = [event.time_ns for event in window.events]
    told = []
    for record in records:
        for here in record.memory if record.window == in_steps else ():
            index = bisect_right(times, record.started_ns + round(here.at_us * 1000)) - 1
            if window.num_unread and index + 1 == len(times):
                continue
            told.append((index, max(0, here.allocated_bytes - (int(window.live_bytes[index]) if index >= 0 else 0))))
    return told


def _stretches(events: tuple[AllocationEvent, ...], records: Iterable[StepRecord]) -> Iterable[StageStretch]:
    times = [event.time_ns for event in events]
    for record in records:
        for span in record.spans:
            first = bisect_left(times, record.started_ns + round(span.start_us * 1000))
            end = bisect_left(times, record.started_ns + round(span.end_us * 1000))
            if first < end:
                yield StageStretch(step=record.step, stage=span.stage, first=first, end=end)
