"""Lines whose allocations are still alive a whole step after the step that made them, in every step seen."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from efprof.facts.live_memory import LiveMemory, LiveWindow
from efprof.facts.run import Run
from efprof.facts.sources import Sources


@dataclass(frozen=True, kw_only=True, slots=True)
class SurvivingLine:
    """A user's line and the bytes that each of its steps left behind, on average."""

    site: str
    bytes_per_step: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Survivors:
    """The lines of all windows, most bytes first."""

    lines: tuple[SurvivingLine, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Compare each step of a window with the end of the next; raises NotRecorded without allocation windows."""
        sources, windows = run.get(Sources), run.get(LiveMemory).windows
        per_step = [left for window in windows for left in _left_behind(window, sources)]
        sites = set.intersection(*(set(left) for left in per_step)) if per_step else set()
        lines = [
            SurvivingLine(
                site=site,
                bytes_per_step=sum(left[site] for left in per_step) / len(per_step),
            )
            for site in sites
        ]
        return cls(lines=tuple(sorted(lines, key=lambda line: (-line.bytes_per_step, line.site))))


def _left_behind(window: LiveWindow, sources: Sources) -> list[Counter[str]]:
    """For each step but the last: bytes by line that outlive the following step.

    What is made between two steps, such as a batch by hand, must outlive the time between the next two as well.
    """
    steps = sorted({stretch.step for stretch in window.stretches})
    bounds = [(window.stretches_of(step)[0].first, window.stretches_of(step)[-1].end) for step in steps]
    left = []
    for place, ((first, end), (next_first, next_end)) in enumerate(pairwise(bounds), 2):
        until = bounds[place][0] if place < len(bounds) else len(window.events)
        lines = _bytes_by_line(window, first, end, next_end, sources)
        if until > next_end:
            lines += _bytes_by_line(window, end, next_first, until, sources)
        left.append(lines)
    return left


def _bytes_by_line(window: LiveWindow, first: int, end: int, until: int, sources: Sources) -> Counter[str]:
    lines: Counter[str] = Counter()
    for index in range(first, end):
        if window.released_at[index] < until:
            continue
        event = window.events[index]
        stack = event.forward_stack if event.is_backward else event.stack
        site = next((site for site in reversed(stack) if sources.is_user_code(site)), None)
        if site is not None:
            lines[site] += event.num_bytes
    return lines
