"""Whether the process's memory outside of tensors and of the C heap grows with every step, and how fast."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.growth import (
    Fit,
    Point,
    first_after_warm_up,
    fit,
    is_leak,
    is_plain_leak,
    steps_read,
)
from efprof.facts.growth_suspects import GrowthSuspects
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.model import NotRecorded, ThinEvidence
from efprof.units import MIB, format_bytes

LEAST_READINGS = 15
"""After warm-up: five blocks of three, as few as a trend of allocated memory is drawn through."""
LEAST_PLAIN_READINGS = 12
"""What a run of 20 steps has: four blocks, of which only a large growth along a plain line is told. In the first 20
steps of some 150 programs sound ones rose by up to 69 MiB, none of these along a line; one rose by 11 MiB along one
(measured). So the rises below hold for few readings too."""
LEAST_RISE, LEAST_RISE_WITH_HEAP = 64 * MIB, 128 * MIB
"""Less the C heap, resident memory rose by up to 34 MiB after warm-up in 25 recordings without a leak, by less than
1 in most (measured, torch 2.13 on a CPU). On CUDA the C heap cannot be taken off; with it they rose by up to 99 MiB."""
LEAST_RISING = 0.5
MOST_GIVEN_BACK = 0.1
"""Python fills what a window or a count of holders gave back first, which a leak of 1 MB per step did for up to 24
steps (measured): half of the blocks may stand still, but none may fall by more than this share of the rise."""

MOST_POINTERS = 1 / 3
"""Of what Python's objects take outside of the C heap: a list has 8 bytes in it for each of at least 24."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGrowth:
    """Resident bytes after the steps at which they were read, and their trend.

    Where the C allocator was read, they are less its heap: what is left are Python's own objects, mapped files, code.
    """

    fit: Fit
    is_heap_read: bool
    is_growing: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Fit the trend; raises NotRecorded where the system told nothing, ThinEvidence where too little was read."""
        is_heap_read = "CUDA" not in run.run_file.memory_source
        records = read_steps(run.rank_folder)[0]
        samples = outside_samples(records, is_heap_read=is_heap_read)
        steps = steps_read(samples)
        if not steps:
            raise NotRecorded("steps.jsonl holds no resident memory of the process; record the run on Linux.")
        first_steady = first_after_warm_up(steps)
        num_readings = max(0, len(steps) - first_steady)
        if num_readings < LEAST_PLAIN_READINGS:
            raise ThinEvidence(_too_few(num_readings))
        found = fit(samples, records, first_steady=first_steady)
        rise = found.trend.slope * (steps[-1] - steps[first_steady])
        is_large = rise >= (LEAST_RISE if is_heap_read else LEAST_RISE_WITH_HEAP)
        is_steady = given_back(found.blocks) <= MOST_GIVEN_BACK * rise
        is_short = num_readings < LEAST_READINGS
        is_line = (
            is_plain_leak(found.steady, found.blocks, found.trend)
            if is_short
            else is_leak(found.blocks, found.trend, least_rising=LEAST_RISING)
        )
        is_growing = is_large and is_steady and is_line
        if is_short and not is_growing:
            raise ThinEvidence(_too_few(num_readings))
        unread_rise = 0.0 if is_growing or found.read_until is None else _rise_since(found.read_until, records, run)
        if unread_rise >= LEAST_RISE_WITH_HEAP:
            raise ThinEvidence(
                f"after step {found.read_until:,} of {found.last_step:,} resident memory rose by "
                f"{format_bytes(unread_rise)} more than what grew until then explains, and of these steps nobody knows "
                "how much of it tensors take; short steps are read now and then, so record a longer run."
            )
        return cls(fit=found, is_heap_read=is_heap_read, is_growing=is_growing)


def _too_few(num_readings: int) -> str:
    return (
        f"host memory was read {num_readings} times after warm-up and outside windows, a trend needs "
        f"{LEAST_READINGS}; short steps are read now and then, so record a longer run."
    )


def outside_samples(records: Sequence[StepRecord], *, is_heap_read: bool) -> list[Point | None]:
    """What was resident after each step that was read in full, less the C heap where that was read; None in a window.

    The last step's reading may come when the program has let go of everything, so it is left out.
    """
    samples: list[Point | None] = []
    for record in records[:-1]:
        if record.window is not None:
            samples.append(None)
        elif record.rss_bytes and record.memory:
            heap_bytes = record.memory[-1].reserved_bytes if is_heap_read else 0
            samples.append((record.step, record.rss_bytes - heap_bytes))
    return samples


def _rise_since(step: int, records: Sequence[StepRecord], run: Run) -> float:
    """How much more was resident at the end than after this step, less what tensors took at the rate until then."""
    resident = [(record.step, record.rss_bytes) for record in records if record.step >= step and record.rss_bytes]
    slope = 0.0
    with contextlib.suppress(ThinEvidence):
        slope = max(0.0, run.get(MemoryGrowth).fit.trend.slope)
    return resident[-1][1] - resident[0][1] - slope * (resident[-1][0] - resident[0][0])


def given_back(blocks: Sequence[Point]) -> int:
    """The largest fall from a block to a later one, in bytes."""
    sizes = [num_bytes for _, num_bytes in blocks]
    return max(highest - size for highest, size in zip(accumulate(sizes, max), sizes, strict=True))


def may_be_pointers(run: Run) -> bool:
    """Whether what grows in the C heap is no more than containers of what grows outside of it have there."""
    with contextlib.suppress(NotRecorded, ThinEvidence):
        host = run.get(HostGrowth)
        slope = run.get(MemoryGrowth).fit.trend.slope
        return host.is_growing and host.is_heap_read and slope <= MOST_POINTERS * host.fit.trend.slope
    return False


def is_told_of_tensors(run: Run) -> bool:
    """Whether an audit of tensors tells of most that grows: what keeps tensors keeps Python objects too.

    Where tensors have the smaller part, the rest is another leak, with a line of its own.
    """
    with contextlib.suppress(ThinEvidence):
        growth = run.get(MemoryGrowth)
        if growth.is_growing or growth.is_growing_slowly:
            suspects = run.get(GrowthSuspects).suspects
            is_told = growth.is_growing or any(one.keeps_graphs for one in suspects)
            held = sum(one.holder.bytes_per_step for one in suspects if one.holder)  # the nodes of graphs too
            return is_told and max(growth.fit.trend.slope, held) >= run.get(HostGrowth).fit.trend.slope
    return False
