"""Which lines of the user's code made the step wait by a call, how often, and for how long."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Self

from efprof.facts.run import Run
from efprof.facts.sources import Sources, place_of
from efprof.facts.step_times import StepTimes
from efprof.model import StallLine


@dataclass(frozen=True, kw_only=True, slots=True)
class StallLines:
    """Every line that stalled a steady step, the most expensive first."""

    lines: tuple[StallLine, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Add up the calls of each line; raises NotRecorded where no step was finished."""
        steady, sources = run.get(StepTimes).steady, run.get(Sources)
        sites: dict[str, str] = {}
        counts: dict[tuple[str, str], int] = defaultdict(int)
        ms: dict[tuple[str, str], float] = defaultdict(float)
        for time in steady:
            for stall in time.record.stalls:
                place = place_of(stall.site)
                sites.setdefault(place, stall.site)
                counts[place, stall.call] += stall.count
                ms[place, stall.call] += stall.us / 1000
        lines = [
            StallLine(
                blame=sources.line(sites[place]),
                call=call,
                count_per_step=count / len(steady),
                step_ms=ms[place, call] / len(steady),
            )
            for (place, call), count in counts.items()
        ]
        return cls(lines=tuple(sorted(lines, key=lambda line: (-line.step_ms, line.blame.key, line.call))))
