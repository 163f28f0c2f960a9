"""Which lines of the user's code made the step wait by a call, how often, and for how long."""

from collections import defaultdict

from efprof.facts.run import Run
from efprof.facts.sources import Sources, place_of
from efprof.facts.step_times import StepTimes
from efprof.model import StallLine


def stall_lines(run: Run) -> tuple[StallLine, ...]:
    """Every line that stalled a steady step, the most expensive first; raises NotRecorded without a finished step."""
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
    return tuple(sorted(lines, key=lambda line: (-line.step_ms, line.blame.key, line.call)))
