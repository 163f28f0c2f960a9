"""The calls of the driver: how often an allocator makes them, and what they took while a history was recorded."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from efprof.artifacts.snapshot import Entry

MIN_CALLS = 5
"""Of a kind, before their median tells anything: between two events the program may have done something else."""


@dataclass(kw_only=True, slots=True)
class Calls:
    """What was asked of the driver: `cudaMalloc` and mapped ranges, `cudaFree` and unmapped ranges; and retries."""

    num_allocs: int = 0
    num_frees: int = 0
    num_maps: int = 0
    num_unmaps: int = 0
    num_retries: int = 0

    @property
    def num_taken(self) -> int:
        return self.num_allocs + self.num_maps

    @property
    def num_returned(self) -> int:
        return self.num_frees + self.num_unmaps

    @property
    def total(self) -> int:
        return self.num_taken + self.num_returned

    @property
    def by_event(self) -> dict[str, int]:
        """How many of each kind, by the event that torch notes when the driver has answered."""
        return {
            "segment_alloc": self.num_allocs,
            "segment_free": self.num_frees,
            "segment_map": self.num_maps,
            "segment_unmap": self.num_unmaps,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverCosts:
    """The median time of a call, by the event that it ends with; of kinds with too few calls nothing is known."""

    by_kind_us: dict[str, float]

    def of(self, calls: Calls) -> float | None:
        """Milliseconds of all these calls, about; None where a kind among them is not known."""
        counts = {kind: number for kind, number in calls.by_event.items() if number}
        if not counts.keys() <= self.by_kind_us.keys():
            return None
        return sum(number * self.by_kind_us[kind] for kind, number in counts.items()) / 1000


def driver_costs(entries: Sequence[Entry]) -> DriverCosts:
    """From the event before each call to its own, less what lies between two events where nothing was called.

    What the program did just before a call is in it: the call itself takes rather less.
    """
    kinds = Calls().by_event
    gaps: dict[str, list[int]] = {kind: [] for kind in (*kinds, "alloc")}
    for before, entry in pairwise(entries):
        if before.time_us is None or entry.time_us is None or entry.action not in gaps:
            continue
        if entry.action == "alloc" and before.action in kinds:  # it follows its own call at once
            continue
        gaps[entry.action].append(entry.time_us - before.time_us)
    between = statistics.median(gaps.pop("alloc") or [0])
    return DriverCosts(
        by_kind_us={
            kind: max(0.0, statistics.median(found) - between)
            for kind, found in gaps.items()
            if len(found) >= MIN_CALLS
        }
    )
