"""Whether memory that is retained after each step grows without end."""

import contextlib
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.holders import Holder, read_censuses
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.growing_graphs import GrowingGraphs
from efprof.facts.growth import (
    IN_WINDOW,
    LEAST_SLOPE,
    WARM_UP_SHARE,
    Fit,
    Point,
    first_after_warm_up,
    fit,
    is_leak,
    is_plain_leak,
    steps_read,
)
from efprof.facts.run import Run
from efprof.facts.stage_memory import read_throughout
from efprof.model import NotRecorded, ThinEvidence, UnreadableInput

LEAST_STEPS = 20
"""Fewer give blocks of less than three steps, whose minimum still carries the noise of single steps."""
LEAST_SLOPE_OF_GRAPHS = 512.0
"""Bytes per step where a variable is seen to keep more autograd graphs with every step, which no sound program does: a
node and its tensor take a kilobyte (facts/holder_lines.py), and what a logger keeps of numbers is a tenth of that."""
LEAST_OF_COUNTED = 0.6
"""Of the rate at which graphs are counted to grow: in four recordings of such leaks memory grew by 0.86 to 1.5 times
as much, and what fills up by half of the way by half as much."""
LONG_RUN = 200
"""Below it a cache or a sawtooth can look like a line (up to 10 % false alarms), so a short run must show more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryGrowth:
    """Retained bytes at the end of steps and their trend, and whether that is a leak."""

    fit: Fit
    is_growing: bool
    is_growing_slowly: bool = False
    """Too slow to matter, or not plain enough for itself, unless what is kept are graphs."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Fit the trend; raises ThinEvidence under `LEAST_STEPS` steps."""
        records = read_steps(run.rank_folder)[0]
        samples = _samples(records, _counted_after(run))
        steps = steps_read(samples)
        if len(steps) < LEAST_STEPS:
            raise ThinEvidence(_too_few(len(steps), records))
        least_left = LEAST_STEPS - math.ceil(WARM_UP_SHARE * LEAST_STEPS)  # enough for a trend
        first_steady = min(first_after_warm_up(steps), len(steps) - least_left)
        found = fit(samples, records, first_steady=first_steady, within=_within(records))
        is_growing = _is_above(LEAST_SLOPE, found)
        is_slower = not is_growing and (_is_above(LEAST_SLOPE_OF_GRAPHS, found) or _is_as_counted(run, found))
        return cls(fit=found, is_growing=is_growing, is_growing_slowly=is_slower)


def _is_above(least_slope: float, found: Fit) -> bool:
    if not found.reaches_end:
        return False  # most readings are early where steps are short, and it stopped growing since
    if len(found.steps) >= LONG_RUN:
        return is_leak(found.blocks, found.trend, least_slope=least_slope)
    return is_plain_leak(found.steady, found.blocks, found.trend, least_slope=least_slope)


def _is_as_counted(run: Run, found: Fit) -> bool:
    """Whether memory, however unevenly, rises to its last reading about as fast as a variable's graphs are counted to.

    In the few readings of short steps a graph's few kilobytes hardly stand out of what comes and goes.
    """
    counted = run.get(GrowingGraphs).bytes_per_step
    is_fast = found.trend.slope >= max(LEAST_SLOPE_OF_GRAPHS, LEAST_OF_COUNTED * counted)
    return counted > 0 and is_fast and found.trend.low > 0 and found.reaches_end


def _samples(records: Sequence[StepRecord], counted_after: Container[int]) -> list[Point | None]:
    """What each step whose memory was read leaves allocated after the optimizer.

    A count of holders is as a window: on a CPU up to 200 KiB of it stay with the process.
    """
    samples: list[Point | None] = []
    for record in records:
        left = _left(record)
        if record.window is None and left is not None:
            samples.append((record.step, left))
        if record.window is not None or record.step in counted_after:
            samples.append(IN_WINDOW)
    return samples


def _counted_after(run: Run) -> set[int]:
    """The steps at whose ends holders were counted and none was found to grow: what grew was maybe the counts' own."""
    with contextlib.suppress(NotRecorded, UnreadableInput):
        in_vain = (census for census in read_censuses(run.rank_folder) if not any(map(_has_grown, census.holders)))
        return {step for census in in_vain for step in (census.step_before, census.step_after)}
    return set()


def _has_grown(holder: Holder) -> bool:
    return holder.tensor_bytes_after + holder.graph_bytes_after > holder.tensor_bytes_before + holder.graph_bytes_before


def _within(records: Sequence[StepRecord]) -> list[int]:
    """What each of those samples' steps outside windows needed at its highest boundary above what it found and left.

    One that was read at its end alone is taken to need as much as the last one that was read throughout. The first one
    finds nothing that a step left, so what it needs compares with no other.
    """
    outside = [(record, left) for record in records if record.window is None and (left := _left(record)) is not None]
    throughout = {record.step for record in read_throughout([record for record, _ in outside])}
    needed = [0]
    for record, left in outside[1:]:
        if record.step in throughout:
            highest = max(here.allocated_bytes for here in record.memory)
            needed.append(highest - max(left, record.memory[0].allocated_bytes))
        else:
            needed.append(needed[-1])
    return needed


def _left(record: StepRecord) -> int | None:
    """What a step leaves allocated; None where that was not read."""
    sizes = [here.allocated_bytes for here in record.memory if here.boundary == "post_optimizer_step"]
    return sizes[-1] if sizes else None


def _too_few(num_read: int, records: Sequence[StepRecord]) -> str:
    """Why there is no trend, and how to record one."""
    num_in_windows = sum(record.window is not None for record in records)
    how = (
        "record with 'efprof record --windows none', so that all steps count"
        if num_read + num_in_windows >= LEAST_STEPS
        else "short steps are read now and then, so record a longer run"
        if num_read + num_in_windows < len(records)
        else "record a longer run"
    )
    return (
        f"memory was read after {num_read} of {len(records)} steps outside windows, a trend needs {LEAST_STEPS}; {how}."
    )
