"""What grew as the steps got longer: samples, micro-batches, gradients, the bytes of the forward pass."""

import contextlib
import statistics
from collections import Counter
from collections.abc import Callable

from efprof.artifacts.steps import StepRecord
from efprof.facts.peak.live_memory import LiveMemory, LiveWindow, sites_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.slowdown import Part, Slowdown
from efprof.facts.steps.step_times import StepTimes
from efprof.model import NotRecorded
from efprof.units import format_value

LEAST_EXPLAINED = 0.5
"""Of what the steps got longer by, relative to what they took: less is not what makes them longer."""

LEAST_LINE_SHARE = 0.02
"""Of the bytes that a forward pass allocates: a line with less may allocate by chance."""

OF_GRADIENTS = frozenset({"backward", "optimizer"})
"""The stages that take longer where more parameters are trained."""


def larger_steps(run: Run) -> str:
    """In words what grew as the steps got longer; empty where nothing that was recorded did."""
    slowdown = run.get(Slowdown)
    least = 1 + LEAST_EXPLAINED * (slowdown.ratio - 1)
    counted: list[tuple[str, Callable[[StepRecord], int | None]]] = [
        ("samples", lambda record: record.samples),
        ("micro-batches", lambda record: record.micro_batches),
    ]
    if slowdown.stage in OF_GRADIENTS:  # as where one layer after the other is unfrozen
        counted += [
            ("gradients", lambda record: record.num_gradients),
            ("bytes of gradients", lambda record: record.gradient_bytes),
        ]
    for name, of in counted:
        before, after = (_usual(run, part, of) for part in (slowdown.early, slowdown.late))
        if before and after >= least * before:
            return f"a step has {after:,.0f} {name} there instead of {before:,.0f}"
    factor = _allocated_growth(run)
    if factor < least:
        return ""
    return f"the lines of the forward pass allocate {format_value(factor, 'ratio')} as much there, as for longer data"


def _usual(run: Run, part: Part, of: Callable[[StepRecord], int | None]) -> float:
    """What the steps of a part had; one in which it was not counted has as many as the last that was."""
    known, found = 0, []
    for time in run.get(StepTimes).every:
        known = of(time.record) or known
        if part.first_step <= time.step <= part.last_step:
            found.append(known)
    return statistics.median(found)


def _allocated_growth(run: Run) -> float:
    """By how much the bytes of most forward lines grew from the first window to the last.

    What keeps more with every step makes a line or two allocate more; longer data does it to all of them.
    """
    with contextlib.suppress(NotRecorded):
        windows = run.get(LiveMemory).windows
        early, late = (_forward_bytes(window, run.get(Sources)) for window in (windows[0], windows[-1]))
        least = LEAST_LINE_SHARE * early.total()
        both = [site for site, num_bytes in early.items() if num_bytes >= least and site in late]
        factors = sorted(late[site] / early[site] for site in both)
        if len(factors) > 1:
            return factors[len(factors) // 4]
    return 1.0


def _forward_bytes(window: LiveWindow, sources: Sources) -> Counter[str]:
    """What each of the user's lines allocates in the forward pass of a step."""
    stretches = [stretch for stretch in window.stretches if stretch.stage == "forward"]
    num_steps = len({stretch.step for stretch in stretches})
    sites, sizes = sites_of(window, sources), Counter[str]()
    for stretch in stretches:
        for index in range(stretch.first, stretch.end):
            site = sites[index]
            if site is not None and window.events[index].num_bytes > 0:
                sizes[site] += window.events[index].num_bytes
    return Counter({site: size // num_steps for site, size in sizes.items() if size >= num_steps})
