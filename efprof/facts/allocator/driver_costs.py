"""What calls of the driver took while a history was recorded, by the times of its events."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from efprof.artifacts.snapshot import Entry
from efprof.facts.allocator.driver_calls import Calls

LEAST_CALLS = 5
"""Of a kind, before their median tells anything: between two events the program may have done something else."""

CALLS: dict[str, Callable[[Calls], int]] = {
    "segment_alloc": lambda calls: calls.num_allocs,
    "segment_free": lambda calls: calls.num_frees,
    "segment_map": lambda calls: calls.num_maps,
    "segment_unmap": lambda calls: calls.num_unmaps,
}
"""How many a setting makes of each kind, by the event that torch notes when the driver has answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverCosts:
    """The median time of a call, by the event that it ends with; of kinds with too few calls nothing is known."""

    by_kind_us: dict[str, float]

    def of(self, calls: Calls) -> float | None:
        """Milliseconds of all these calls, about; None where a kind among them is not known."""
        counts = {kind: count(calls) for kind, count in CALLS.items()}
        if any(number and kind not in self.by_kind_us for kind, number in counts.items()):
            return None
        return sum(number * self.by_kind_us[kind] for kind, number in counts.items() if number) / 1000


def driver_costs(entries: Sequence[Entry]) -> DriverCosts:
    """From the event before each call to its own, less what lies between two events where nothing was called.

    What the program did just before a call is in it: the call itself takes rather less.
    """
    gaps: dict[str, list[int]] = {kind: [] for kind in (*CALLS, "alloc")}
    for before, entry in pairwise(entries):
        if before.time_us is None or entry.time_us is None or entry.action not in gaps:
            continue
        if entry.action == "alloc" and before.action in CALLS:  # it follows its own call at once
            continue
        gaps[entry.action].append(entry.time_us - before.time_us)
    between = statistics.median(gaps.pop("alloc") or [0])
    return DriverCosts(
        by_kind_us={
            kind: max(0.0, statistics.median(found) - between)
            for kind, found in gaps.items()
            if len(found) >= LEAST_CALLS
        }
    )
