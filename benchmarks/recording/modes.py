"""What a light step costs, and what a full one: every step bare, light or full by turns, in one process.

The recorder's own clock does not see the dispatch of hooks, nor the caches that it leaves cold: the difference that is
measured over what the clock says is `UNSEEN_COST`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.intervals import median_with_interval
from benchmarks.recording.blocks import STEPS_TO_SETTLE, BlockRequest, Side
from benchmarks.recording.measuring import FIRST_STEPS, STEPS_ALONE
from benchmarks.recording.processes import started
from benchmarks.recording.table import interval, line
from benchmarks.recording.variants import PLAIN, switch_request
from efprof.artifacts.steps import read_steps

COMPILED = ("mlp", "transformer")
"""Loops whose model is small, and called as a whole; measured compiled as well."""

MODES_SECONDS = 20.0

ROUND_MS = 700.0
"""Two slices of each side: all steps of a side cost alike, so that the more rounds, the better."""

SIDES: tuple[Side, ...] = ("bare", "light", "full")

HEADER = ("loop", "bare step", "a light step adds", "by its own clock", "a full one adds", "by its own clock")
MODES_HEAD = (line(HEADER), line(["---"] * len(HEADER)))


def mode_lines(loops: Sequence[str], device: str, seconds: float) -> Iterator[str]:
    """A line of the table for each of these loops, and one more where it is measured compiled."""
    for loop in loops:
        for is_compiled in (False, True) if loop in COMPILED else (False,):
            yield _line(loop, device, seconds, is_compiled=is_compiled)


def _line(loop: str, device: str, seconds: float, *, is_compiled: bool) -> str:
    with started(PLAIN, loop, device) as worker:
        worker.run(BlockRequest(warm_up=FIRST_STEPS, steps=1))
        bare_ms = worker.run(BlockRequest(warm_up=0, steps=STEPS_ALONE)).step_ms
        request = switch_request(
            bare_ms, seconds, SIDES, {"windows": "none"}, round_ms=ROUND_MS, is_compiled=is_compiled
        )
        times = worker.switch(request)
        steps = read_steps(Path(times.folder) / "rank0")[0][STEPS_TO_SETTLE:]
    of_side = times.wall_ms if device == "cuda" else times.cpu_ms
    cells = [f"{loop}, compiled" if is_compiled else loop, f"{median(of_side['bare']):.2f} ms"]
    for side in SIDES[1:]:
        pairs = zip(of_side[side], of_side["bare"], strict=True)
        added = median_with_interval([(recorded - bare) * 1000 for recorded, bare in pairs])
        own_us = median(step.recorder_us for step in steps if step.is_full == (side == "full"))
        cells += [f"{interval(added, '.0f')} us", f"{own_us:.0f} us"]
    return line(cells)
