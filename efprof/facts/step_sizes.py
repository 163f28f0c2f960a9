"""Whether later steps have more to do because they are larger: more samples, more micro-batches, larger tensors."""

import contextlib
import statistics
from collections import Counter
from collections.abc import Callable

from efprof.artifacts.steps import StepRecord
from efprof.facts.input_sizes import InputGrowth
from efprof.facts.live_memory import LiveMemory, LiveWindow
from efprof.facts.run import Run
from efprof.facts.slowdown import Part, Slowdown
from efprof.facts.sources import Sources
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded
from efprof.units import format_value

LEAST_EXPLAINED = 0.5
"""Of what the steps got longer by, relative to what they took: less is not what makes them longer."""
LEAST_LINE_SHARE = 0.02
"""Of the bytes that a forward pass allocates: a line with less may allocate by chance."""


def larger_steps(run: Run) -> str:
    """In words what grew as the steps got longer; empty where nothing that was recorded did."""
    slowdown = run.get(Slowdown)
    least = 1 + LEAST_EXPLAINED * (slowdown.ratio - 1)
    counted: tuple[tuple[str, Callable[[StepRecord], int]], ...] = (
        ("samples", lambda record: record.samples),
        ("micro-batches", lambda record: record.micro_batches),
    )
    for name, of in counted:
        before, after = (_typical(run, part, of) for part in (slowdown.early, slowdown.late))
        if before and after >= least * before:
            return f"a step has {after:,.0f} {name} there instead of {before:,.0f}"
    factor = _allocated_factor(run)
    if factor >= least:
        return (
            f"the lines of the forward pass allocate {format_value(factor, 'ratio')} as much there, as for longer data"
        )
    factor = _input_factor(run)
    if factor >= least:
        told = format_value(factor, "ratio")
        return f"the operators of the forward pass have inputs {told} as large there, as for longer data"
    return ""


def _typical(run: Run, part: Part, of: Callable[[StepRecord], int]) -> float:
    records = [time.record for time in run.get(StepTimes).steady if part.first_step <= time.step <= part.last_step]
    return statistics.median(of(record) for record in records)


def _input_factor(run: Run) -> float:
    with contextlib.suppress(NotRecorded):
        return run.get(InputGrowth).factor
    return 1.0


def _allocated_factor(run: Run) -> float:
    """By how much a forward line's bytes grew, from the first allocation window to the last, that most grew more than.

    What keeps more with every step makes a line or two allocate more; longer data does it to all of them.
    """
    with contextlib.suppress(NotRecorded):
        windows = run.get(LiveMemory).windows
        early, late = (_forward_bytes(window, run.get(Sources)) for window in (windows[0], windows[-1]))
        least = LEAST_LINE_SHARE * sum(early.values())
        factors = sorted(late[site] / before for site, before in early.items() if before >= least and site in late)
        return factors[len(factors) // 4] if len(factors) > 1 else 1.0
    return 1.0


def _forward_bytes(window: LiveWindow, sources: Sources) -> Counter[str]:
    """What each of the user's lines allocates in the forward pass of a step."""
    stretches = [stretch for stretch in window.stretches if stretch.stage == "forward"]
    num_steps = len({stretch.step for stretch in stretches})
    found: Counter[str] = Counter()
    for stretch in stretches:
        for event in window.events[stretch.first : stretch.end]:
            site = next((site for site in reversed(event.stack) if sources.is_user_code(site)), None)
            if site is not None and event.num_bytes > 0:
                found[site] += event.num_bytes
    return Counter({site: total // num_steps for site, total in found.items()})
