"""Whether later backward passes compute more gradients, as where one layer after the other is unfrozen."""

import contextlib
import statistics
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import StepRecord
from efprof.artifacts.trace import Trace, read_trace, trace_paths
from efprof.facts.run import Run
from efprof.facts.slowdown import Part, Slowdown
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded

ACCUMULATING = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
"""Runs once for each parameter that a backward pass computes a gradient for; what a graph keeps adds none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientGrowth:
    """Gradients per step, early and late; `byte_factor` is what their bytes grew by. 0 and 1 where nothing is known.

    The counts are those of the first and the last profiler window, or of the slow-down's two parts, whichever differ
    more: windows may all lie before the run's last third, and gradients are counted in few of its steps.
    """

    early: float = 0.0
    late: float = 0.0
    byte_factor: float = 1.0

    @property
    def factor(self) -> float:
        """What their number grew by."""
        return self.late / self.early if self.early else 1.0

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where there are too few steps for a slow-down."""
        slowdown = run.get(Slowdown)
        parts = (slowdown.early, slowdown.late)
        counts = [_in_windows(run), tuple(_in_part(run, part, lambda record: record.num_gradients) for part in parts)]
        early, late = max(counts, key=lambda pair: pair[1] / pair[0] if pair[0] else 0.0)
        before, after = (_in_part(run, part, lambda record: record.gradient_bytes) for part in parts)
        return cls(early=early, late=late, byte_factor=after / before if before else 1.0)


def _in_windows(run: Run) -> tuple[float, float]:
    """Gradients per step of the first window and of the last; 0 where there are not two."""
    windows = []
    with contextlib.suppress(NotRecorded):
        for path in trace_paths(run.rank_folder):
            steps = [time.record for time in run.get(StepTimes).every if time.record.window == path.name.split(".")[0]]
            if steps:
                windows.append((path, steps))
    if len(windows) < 2:
        return 0.0, 0.0
    early, late = (_accumulated(read_trace(path), steps) for path, steps in (windows[0], windows[-1]))
    return early, late


def _accumulated(trace: Trace, steps: list[StepRecord]) -> float:
    starts = [event.start_ns for event in trace.events if event.name == ACCUMULATING]
    ends = [(step.started_ns, step.started_ns + round(step.total_us * 1000)) for step in steps]
    return float(statistics.median(bisect_right(starts, end) - bisect_right(starts, start) for start, end in ends))


def _in_part(run: Run, part: Part, of: Callable[[StepRecord], int | None]) -> float:
    """What the steps of a part had, typically; one whose gradients were not counted has as many as the last counted."""
    known, found = 0, []
    for time in run.get(StepTimes).every:
        known = of(time.record) or known
        if part.first_step <= time.step <= part.last_step:
            found.append(known)
    return float(statistics.median(found))
