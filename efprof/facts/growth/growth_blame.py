"""The line to blame for memory that grows and that nothing counted keeps, by the best that was seen of it."""

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Self

from efprof.facts.growth.backward_calls import gradient_cycles
from efprof.facts.growth.host_growth import grown_containers
from efprof.facts.growth.kept import RetainedTensors
from efprof.facts.growth.leaks import MIN_SHARE, Leaks, backward_line, place_to_blame
from efprof.facts.growth.memory_growth import MemoryGrowth, growth_evidence
from efprof.facts.peak.live_memory import LiveMemory, LiveWindow, sites_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Evidence, NotRecorded, SourceLine


@dataclass(frozen=True, kw_only=True, slots=True)
class UnattributedGrowth:
    """A line, why it is that one as a clause, what is known of what keeps it, and what to do there.

    `container` is one that was counted to grow.
    """

    blame: SourceLine
    headline: str = "Memory is left behind by every step"
    why: str
    how: str = "A cache of a library, or an object that only C++ holds, may."
    advice: str = ""
    container: RetainedTensors | None = None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """By a container, a cycle of leaves and gradients, a line whose allocations survive, or the call of backward.

        Raises ThinEvidence where not even the line that calls backward is known.
        """
        slope, grown, sources = run.get(MemoryGrowth).fit.trend.slope, run.get(Leaks).grown, run.get(Sources)
        if (container := _container(run, slope)) is not None:
            unseen = "" if container.fed else f"; the line that feeds it is not known ({container.unseen})"
            return cls(
                blame=place_to_blame(run, container),
                headline=f"`{container.name}` keeps more and more",
                why=f"no variable keeps more tensors, and `{container.name}` was counted to get longer{unseen}",
                container=container,
            )
        with contextlib.suppress(NotRecorded):
            for cycle in gradient_cycles(run):
                return cls(
                    blame=sources.line(cycle.site),
                    headline="The gradient of a tensor leads back to the tensor",
                    why="the gradient that this call gives a tensor has a graph that leads back to it",
                    how=f"{cycle.num_cycles} tensors that this call of backward gave a gradient with a graph were seen "
                    "alive at once, each with that gradient. They keep each other alive through C++, where Python's "
                    "garbage collector does not see them.",
                    advice="Take the gradient by `torch.autograd.grad(..., tensor, create_graph=True)`, which leaves "
                    "none in the tensor, or set its `grad` to None once the step has used it.",
                )
        advice = "Find what this line's result is kept in: "
        if grown is None:
            advice += "holders were not counted, so record a longer run."
        else:
            advice += "no variable that was counted; look for a cache, a hook that each step registers anew, or an "
            advice += "object that only C++ holds."
        with contextlib.suppress(NotRecorded):
            for site, bytes_per_step in surviving_lines(run)[:1]:
                if bytes_per_step >= MIN_SHARE * slope:
                    why = "most of it is allocated by this line and still alive a step later"
                    return cls(blame=sources.line(site), why=why, advice=advice)
        why = "what holds it is not known, so this is the line that runs backward"
        return cls(blame=backward_line(run), why=why, advice=advice)

    def evidence(self, run: Run) -> tuple[Evidence, ...]:
        leaks, fit = run.get(Leaks), run.get(MemoryGrowth).fit
        counted, kept = leaks.missing, () if self.container is None else (self.container,)
        if leaks.grown is not None:
            times = leaks.grown.num_counts
            counted = f"What keeps tensors was counted {times} times, and no variable was seen to keep it."
        return growth_evidence(
            fit=fit,
            kept=(*kept, *(leaks.grown.holders if leaks.grown else ())),
            how=("Every step leaves memory behind that nothing releases.", f"{counted} {self.how}"),
        )


def surviving_lines(run: Run) -> list[tuple[str, float]]:
    """Sites, most bytes first, whose allocations outlive the next step in every step seen, and the mean bytes of each.

    Each step of a window is compared with the end of the next; raises NotRecorded without allocation windows.
    """
    sources, windows = run.get(Sources), run.get(LiveMemory).windows
    per_step = [left for window in windows for left in _left_behind(window, sources)]
    sites = set.intersection(*(set(left) for left in per_step)) if per_step else set()
    lines = [(site, sum(left[site] for left in per_step) / len(per_step)) for site in sites]
    return sorted(lines, key=lambda line: (-line[1], line[0]))


def _container(run: Run, slope: float) -> RetainedTensors | None:
    """One whose entries explain it, as they do on a CPU; else one of a library, whose entries are not taken apart."""
    if "CUDA" not in run.run_file.memory_source:
        for one in grown_containers(run):
            if one.rate.slope >= MIN_SHARE * slope:
                return one
    grown = run.get(Leaks).grown
    fed = [one for one in grown.containers if one.fed and one.verdict != "bounded"] if grown else []
    return next((one for one in fed if one.fed[0].is_within_call), None)


def _left_behind(window: LiveWindow, sources: Sources) -> list[Counter[str]]:
    """For each step but the last, up to the begin of the next: bytes by line that outlive that step as well."""
    sites = sites_of(window, sources)
    steps = sorted({stretch.step for stretch in window.stretches})
    begins = [*(window.stretches_of(step)[0].first for step in steps), len(window.events)]
    left = []
    for begin, end, until in zip(begins, begins[1:], begins[2:], strict=False):
        lines: Counter[str] = Counter()
        for block in range(begin, end):
            site = sites[block]
            if site is not None and window.released_at[block] >= until:
                lines[site] += window.events[block].num_bytes
        left.append(lines)
    return left
