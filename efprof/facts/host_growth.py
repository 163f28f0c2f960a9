"""Whether the process's memory outside of tensors and of the C heap grows with every step, and how fast."""

import contextlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.growth import (
    LEAST_WARM_UP,
    NUM_ALIGNMENTS,
    WARM_UP_SHARE,
    MemoryGrowth,
    Point,
    Trend,
    block_minima,
    is_leak,
    theil_sen,
    without_window_residue,
)
from efprof.facts.growth_suspects import GrowthSuspects
from efprof.facts.run import Run
from efprof.model import NotRecorded, ThinEvidence
from efprof.units import MIB

LEAST_READINGS = 15
"""After warm-up: five blocks of three, as few as a trend of allocated memory is drawn through."""
LEAST_RISE, LEAST_RISE_WITH_HEAP = 64 * MIB, 128 * MIB
"""Less the C heap, resident memory rose by up to 34 MiB after warm-up in 25 recordings without a leak, by less than
1 in most (measured, torch 2.13 on a CPU). On CUDA the C heap cannot be taken off; with it they rose by up to 99 MiB."""
LEAST_RISING = 0.5
MOST_GIVEN_BACK = 0.1
"""Python fills what a window or a count of holders gave back first, which a leak of 1 MB per step did for up to 24
steps (measured): half of the blocks may stand still, but none may fall by more than this share of the rise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGrowth:
    """Resident bytes after the steps at which they were read, and their trend.

    Where the C allocator was read, they are less its heap: what is left are Python's own objects, mapped files, code.
    What windows left behind is taken out.
    """

    steps: tuple[int, ...]
    outside_bytes: tuple[int, ...]
    is_heap_read: bool
    first_steady: int
    num_blocks: int
    trend: Trend
    is_growing: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Fit the trend; raises NotRecorded where the system told nothing, ThinEvidence on too few readings."""
        is_heap_read = "CUDA" not in run.run_file.memory_source
        samples = outside_samples(read_steps(run.rank_folder)[0], is_heap_read=is_heap_read)
        steps = tuple(sample[0] for sample in samples if sample is not None)
        if not steps:
            raise NotRecorded("steps.jsonl holds no resident memory of the process; record the run on Linux.")
        first_steady = _first_steady(steps)
        if len(steps) - first_steady < LEAST_READINGS:
            raise ThinEvidence(
                f"host memory was read {max(0, len(steps) - first_steady)} times after warm-up and outside windows, a "
                f"trend needs {LEAST_READINGS}; short steps are read now and then, so record a longer run."
            )
        slope = 0.0
        for _ in range(NUM_ALIGNMENTS):
            outside = without_window_residue(samples, slope)
            blocks = block_minima(outside[first_steady:])
            trend = theil_sen(blocks)
            slope = max(0.0, trend.slope)
        rise = trend.slope * (steps[-1] - steps[first_steady])
        is_large = rise >= (LEAST_RISE if is_heap_read else LEAST_RISE_WITH_HEAP)
        is_steady = given_back(blocks) <= MOST_GIVEN_BACK * rise
        return cls(
            steps=steps,
            outside_bytes=tuple(num_bytes for _, num_bytes in outside),
            is_heap_read=is_heap_read,
            first_steady=first_steady,
            num_blocks=len(blocks),
            trend=trend,
            is_growing=is_large and is_steady and is_leak(blocks, trend, least_rising=LEAST_RISING),
        )

    @property
    def rise_bytes(self) -> float:
        """What growth added over the recorded steps, and no more than the rise that was measured."""
        return self._rise(self.trend.slope)

    @property
    def rise_interval(self) -> tuple[float, float]:
        """The same at both ends of the slope's interval."""
        return self._rise(self.trend.low), self._rise(self.trend.high)

    def _rise(self, slope: float) -> float:
        measured = max(self.outside_bytes) - min(self.outside_bytes)
        return min(slope * (self.steps[-1] - self.steps[0]), measured)


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


def given_back(blocks: Sequence[Point]) -> int:
    """The largest fall from a block to a later one, in bytes."""
    sizes = [num_bytes for _, num_bytes in blocks]
    return max(highest - size for highest, size in zip(accumulate(sizes, max), sizes, strict=True))


def is_told_of_tensors(run: Run) -> bool:
    """Whether an audit of tensors tells of growth: what keeps them keeps Python objects too, and is named there."""
    with contextlib.suppress(ThinEvidence):
        growth = run.get(MemoryGrowth)
        if growth.is_growing:
            return True
        return growth.is_growing_slowly and any(one.keeps_graphs for one in run.get(GrowthSuspects).suspects)
    return False


def _first_steady(steps: Sequence[int]) -> int:
    """The place of the first step after warm-up."""
    return max(LEAST_WARM_UP, bisect_left(steps, steps[0] + WARM_UP_SHARE * (steps[-1] + 1 - steps[0])))
