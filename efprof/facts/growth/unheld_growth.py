"""Growth that no holder of tensors explains: of the host's memory, by containers; of the rest, the line to blame."""

import contextlib
from collections import Counter
from dataclasses import replace
from typing import Self

from efprof.facts.growth.backward_calls import gradient_cycles
from efprof.facts.growth.kept import RetainedTensors
from efprof.facts.growth.kept_growth import KeptGrowth
from efprof.facts.growth.leaks import MIN_SHARE, Leaks, backward_line, may_be_filling, place_to_blame
from efprof.facts.growth.memory_growth import MemoryGrowth, growth_evidence
from efprof.facts.growth.trend import (
    IN_WINDOW,
    MIN_SLOPE,
    Fit,
    Point,
    first_after_warm_up,
    fit,
    is_in_window,
    is_steady,
)
from efprof.facts.peak.live_memory import LiveMemory, LiveWindow, sites_of
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import RunLimits
from efprof.facts.source.sources import Sources
from efprof.model import Evidence, NotRecorded, SourceLine, ThinEvidence, frozen_dataclass
from efprof.units import MIB, format_count

MIN_READINGS = 12
"""After warm-up: what a run of 20 steps has. Sound ones of 150 programs rose by up to 69 MiB in 20 steps,
none of these along a line; one rose by 11 MiB along one (measured). So the rises below hold for few readings too."""
MIN_RISE, MIN_RISE_WITH_HEAP = 64 * MIB, 128 * MIB
"""Less the C heap, resident memory rose by up to 34 MiB after warm-up in 25 recordings without a leak, by less than
1 in most (measured, torch 2.13 on a CPU). On CUDA the C heap cannot be taken off; with it they rose by up to 99 MiB."""
MIN_EXPLAINED = 0.02
"""Of what grows, by the containers that were counted: what an entry takes is sampled, and not to its depths (measured:
4.5 % of lists of lists of dictionaries)."""
MIN_SEEN = 0.5
"""Of what containers were counted to take, by resident memory, where that does not rise as evenly as a leak does."""
MIN_FILLING = 0.5
"""Of the tensors that were seen to outlive their step, by what variables keep that may still be filling."""
MAX_POINTERS = 1 / 3
"""Of what Python's objects take outside of the C heap: a list has 8 bytes in it for each of at least 24."""


@frozen_dataclass
class HostGrowth:
    """Resident bytes after the steps at which they were read, and their trend; `containers` were counted to grow.

    Where the C allocator was read, they are less its heap: what is left are Python's own objects, mapped files, code.
    """

    fit: Fit
    is_heap_read: bool
    is_growing: bool
    containers: tuple[RetainedTensors, ...]

    @property
    def is_explained(self) -> bool:
        """Whether containers were counted to grow by some of what grows; or at every count, and memory as much."""
        slope, counted = self.fit.trend.slope, sum(one.rate.slope for one in self.containers)
        if self.is_growing:
            return counted >= MIN_EXPLAINED * slope
        surely = sum(one.rate.slope for one in self.containers if one.verdict == "leak")
        return surely >= MIN_SLOPE and self.fit.trend.low > 0 and slope >= MIN_SEEN * surely

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Fit the trend; raises NotRecorded where the system told nothing, ThinEvidence where too little was read."""
        is_heap_read = not run.is_on_cuda
        records = run.steps
        samples: list[Point | None] = []
        for record in records[:-1]:  # the last one's reading may come when the program has let go of everything
            if is_in_window(record):
                samples.append(IN_WINDOW)
            elif record.rss_bytes and record.memory:
                heap_bytes = record.memory[-1].reserved_bytes if is_heap_read else 0
                samples.append((record.step, record.rss_bytes - heap_bytes))
        steps = [sample[0] for sample in samples if sample is not IN_WINDOW]
        if not steps:
            raise NotRecorded("steps.jsonl holds no resident memory of the process; record the run on Linux.")
        first_steady = first_after_warm_up(steps)
        num_readings = max(0, len(steps) - first_steady)
        if num_readings < MIN_READINGS:
            raise ThinEvidence(
                f"host memory was read {format_count(num_readings, 'time')} after warm-up and outside windows, a trend "
                f"needs {MIN_READINGS}; record a longer run."
            )
        found = fit(samples, records, first_steady=first_steady)
        rise = found.trend.slope * (steps[-1] - steps[first_steady])
        is_large = rise >= (MIN_RISE if is_heap_read else MIN_RISE_WITH_HEAP)
        return cls(
            fit=found,
            is_heap_read=is_heap_read,
            is_growing=is_large and is_steady(found.blocks, found.trend),
            containers=grown_containers(run),
        )


def grown_containers(run: Run) -> tuple[RetainedTensors, ...]:
    """Containers of what is no tensor that were counted to grow, and no count or limit says that they end to.

    Those with a line come first, of both the fastest.
    """
    counted = run.find(KeptGrowth)
    containers = counted.containers if counted else ()
    grown = [one for one in containers if one.verdict in ("leak", "thin") and one.is_large]
    return tuple(sorted(grown, key=lambda one: not one.fed))


def may_be_pointers(run: Run) -> bool:
    """Whether what grows in the C heap is no more than containers of what grows outside of it have there."""
    host, memory = run.find(HostGrowth, ThinEvidence), run.find(MemoryGrowth, ThinEvidence)
    if host is None or memory is None or not (host.is_growing or host.is_explained):
        return False
    return host.is_heap_read and memory.fit.trend.slope <= MAX_POINTERS * host.fit.trend.slope


def host_limits(run: Run) -> RunLimits:
    """Of the host's memory, whatever device trains."""
    used = next((one.rss_bytes for one in reversed(run.steps) if one.rss_bytes), 0)
    total = run.run_file.host.total_bytes if run.run_file.host else 0
    return replace(run.get(RunLimits), name="the host", total_bytes=total, used_bytes=used, ran_out=False)


def host_growth_evidence(run: Run) -> tuple[Evidence, ...]:
    growth = run.get(HostGrowth)
    what = "outside of tensors and the C heap, " if growth.is_heap_read else ""
    containers, sizes = growth.containers, growth.containers[0].sizes
    return growth_evidence(
        fit=growth.fit,
        kept=containers,
        how=(
            f"Containers were counted {len(sizes)} times up to step {sizes[-1].step:,}. What an entry takes was "
            "sampled, and may be shared with others.",
        ),
        title=f"Memory of the process {what}after each step",
    )


@frozen_dataclass
class UnattributedGrowth:
    """A line, why it is that one as a clause, and what to do there; `container` is one that was counted to grow."""

    blame: SourceLine
    headline: str = "Memory is left behind by every step"
    why: str
    advice: str = ""
    container: RetainedTensors | None = None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """By a container, a cycle of leaves and gradients, a line whose allocations survive, or the call of backward.

        Raises ThinEvidence where not even the line that calls backward is known.
        """
        slope, grown, sources = run.get(MemoryGrowth).fit.trend.slope, run.get(Leaks).grown, run.get(Sources)
        if (container := _container_to_blame(run, slope)) is not None:
            unseen = "" if container.fed else f"; the line that feeds it is not known ({container.unseen})"
            return cls(
                blame=place_to_blame(run, container),
                headline=f"`{container.name}` keeps more and more",
                why=f"no variable keeps more tensors, and `{container.name}` was counted to get longer{unseen}",
                container=container,
            )
        with contextlib.suppress(NotRecorded):
            for cycle in gradient_cycles(run)[:1]:
                leaf, name = (f"`{cycle.leaf}`", cycle.leaf) if cycle.leaf else ("a tensor", "tensor")
                return cls(
                    blame=sources.line(cycle.site),
                    headline=f"The gradient of {leaf} leads back to its own tensor",
                    why=f"the gradient that this call gives {leaf} has a graph that leads back to it; "
                    f"{cycle.num_cycles} such pairs were alive at once. They keep each other through C++, which "
                    "Python's garbage collector does not see",
                    advice=f"Take the gradient by `torch.autograd.grad(..., {name}, create_graph=True)`, which leaves "
                    f"none in {leaf}, or set `{name}.grad = None` once the step has used it.",
                )
        advice = "Find what this line's result is kept in: "
        if not grown.num_counts:
            advice += "holders were not counted, so record a longer run."
        else:
            advice += "no variable that was counted. Look for a cache, a hook that each step registers again, or an "
            advice += "object that only C++ holds."
        with contextlib.suppress(NotRecorded):
            for site, bytes_per_step in surviving_lines(run)[:1]:
                if bytes_per_step >= MIN_SHARE * slope:
                    why = "most of it is allocated by this line and still alive a step later"
                    return cls(blame=sources.line(site), why=why, advice=advice)
        why = "what holds it is not known, so this is the line that runs backward"
        return cls(blame=backward_line(run), why=why, advice=advice)

    def is_counted(self, slope: float) -> bool:
        """Whether its container grew at every count, and memory by much of that."""
        one = self.container
        return one is not None and one.verdict == "leak" and slope >= MIN_SEEN * one.rate.slope

    def evidence(self, run: Run) -> tuple[Evidence, ...]:
        leaks, fit = run.get(Leaks), run.get(MemoryGrowth).fit
        counted, kept = leaks.missing, () if self.container is None else (self.container,)
        if leaks.grown.num_counts:
            times = format_count(leaks.grown.num_counts, "time")
            counted = f"What keeps tensors was counted {times}, and no variable was seen to keep it."
        return growth_evidence(
            fit=fit,
            kept=(*kept, *leaks.grown.holders),
            how=("Every step leaves memory behind that nothing releases.", counted),
        )


def is_of_what_fills(run: Run) -> bool:
    """True if most of what was seen to outlive its step is what variables keep that may still be filling.

    What else grows are then the tensors of each step, as those that are made of all that is kept.
    """
    if run.get(UnattributedGrowth).container is not None:
        return False
    holders, left = run.get(Leaks).grown.holders, 0.0
    with contextlib.suppress(NotRecorded):
        left = sum(bytes_per_step for _, bytes_per_step in surviving_lines(run))
    filling = [one for one in holders if one.verdict != "bounded" and may_be_filling(run, one)]
    return 0 < MIN_FILLING * left <= sum(one.rate.slope for one in filling)


def surviving_lines(run: Run) -> list[tuple[str, float]]:
    """Sites, most bytes first, whose allocations outlive the next step in every step seen, and the mean bytes of each.

    Each step of a window is compared with the end of the next; raises NotRecorded without allocation windows.
    """
    sources, windows = run.get(Sources), run.get(LiveMemory).windows
    per_step = [left for window in windows for left in _left_behind(window, sources)]
    sites = set.intersection(*(set(left) for left in per_step)) if per_step else set()
    lines = [(site, sum(left[site] for left in per_step) / len(per_step)) for site in sites]
    return sorted(lines, key=lambda line: (-line[1], line[0]))


def _container_to_blame(run: Run, slope: float) -> RetainedTensors | None:
    """One whose entries explain it, as they do on a CPU; else one of a library, whose entries are not taken apart."""
    if not run.is_on_cuda:
        for one in grown_containers(run):
            if one.rate.slope >= MIN_SHARE * slope:
                return one
    fed = (one for one in run.get(Leaks).grown.containers if one.fed and one.verdict != "bounded")
    return next((one for one in fed if one.is_fed_by_library), None)


def _left_behind(window: LiveWindow, sources: Sources) -> list[Counter[str]]:
    """For each step but the last, up to the begin of the next: bytes by line that outlive that step as well."""
    sites = sites_of(window, sources)
    firsts = {stretch.step: stretch.first for stretch in reversed(window.stretches)}
    begins = [*sorted(firsts.values()), len(window.events)]
    left = []
    for begin, end, until in zip(begins, begins[1:], begins[2:], strict=False):
        lines = Counter[str]()
        for block in range(begin, end):
            site = sites[block]
            if site is not None and window.released_at[block] >= until:
                lines[site] += window.events[block].num_bytes
        left.append(lines)
    return left
