"""Whether later steps have more to do because they are larger: more samples, passes or gradients, larger tensors."""

import ast
import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from efprof.artifacts.steps import StepRecord
from efprof.facts.gradient_growth import GradientGrowth
from efprof.facts.input_sizes import InputGrowth
from efprof.facts.kept_growth import lengthened
from efprof.facts.live_memory import LiveMemory, LiveWindow
from efprof.facts.run import Run
from efprof.facts.slowdown import Part, Slowdown
from efprof.facts.sources import Sources
from efprof.facts.step_code import StepCode
from efprof.facts.step_times import StepTimes
from efprof.facts.syntax import name_of
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
    counted: tuple[tuple[str, Callable[[StepRecord], int]], ...] = (
        ("samples", lambda record: record.samples),
        ("micro-batches", lambda record: record.micro_batches),
    )
    for name, of in counted:
        before, after = (_typical(run, part, of) for part in (slowdown.early, slowdown.late))
        if before and after >= least * before:
            return f"a step has {after:,.0f} {name} there instead of {before:,.0f}"
    if slowdown.stage in OF_GRADIENTS and (trained := _more_gradients(run.get(GradientGrowth), least)):
        return trained
    allocated, inputs = _allocated_growth(run), _input_growth(run)
    if max(allocated.largest_factor, inputs.largest_factor) < least and _goes_through_what_is_kept(run):
        return ""  # no tensor is larger: the loop through what the steps keep does the same more often
    if (factor := allocated.factor) >= least:
        return (
            f"the lines of the forward pass allocate {format_value(factor, 'ratio')} as much there, as for longer data"
        )
    if (factor := inputs.factor) >= least:
        told = format_value(factor, "ratio")
        return f"the operators of the forward pass have inputs {told} as large there, as for longer data"
    return ""


def _goes_through_what_is_kept(run: Run) -> bool:
    """Whether a loop of the step goes through something that was counted to get longer."""
    code = run.get(StepCode)
    looped = (
        placed.node.iter
        for file in code.trees
        for placed in code.nodes(file)
        if isinstance(placed.node, ast.For | ast.AsyncFor | ast.comprehension) and code.is_in_step(placed)
    )
    names = {name_of(node) for one in looped for node in ast.walk(one) if isinstance(node, ast.Name | ast.Attribute)}
    return any(name is not None and lengthened(run, name) is not None for name in names)


def _more_gradients(grown: GradientGrowth, least: float) -> str:
    if grown.factor >= least:
        counts = f"{grown.late:,.0f} gradients instead of {grown.early:,.0f}"
        return f"a later step computes {counts}, as for unfrozen layers"
    if grown.byte_factor >= least:
        return f"the gradients are {format_value(grown.byte_factor, 'ratio')} as large there, as for unfrozen layers"
    return ""


def _typical(run: Run, part: Part, of: Callable[[StepRecord], int]) -> float:
    records = [time.record for time in run.get(StepTimes).steady if part.first_step <= time.step <= part.last_step]
    return statistics.median(of(record) for record in records)


def _input_growth(run: Run) -> InputGrowth:
    with contextlib.suppress(NotRecorded):
        return run.get(InputGrowth)
    return InputGrowth(factor=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _AllocatedGrowth:
    """By how much a forward line's bytes grew, from the first allocation window to the last, that most grew more than.

    `largest_factor` is what any line's largest single block grew by.
    """

    factor: float = 1.0
    largest_factor: float = 1.0


def _allocated_growth(run: Run) -> _AllocatedGrowth:
    """What keeps more with every step makes a line or two allocate more; longer data does it to all of them."""
    with contextlib.suppress(NotRecorded):
        windows = run.get(LiveMemory).windows
        early, late = (_forward_blocks(window, run.get(Sources)) for window in (windows[0], windows[-1]))
        least = LEAST_LINE_SHARE * sum(lines.num_bytes for lines in early.values())
        both = [(before, late[site]) for site, before in early.items() if before.num_bytes >= least and site in late]
        factors = sorted(after.num_bytes / before.num_bytes for before, after in both)
        if len(factors) > 1:
            largest = max(after.largest_bytes / before.largest_bytes for before, after in both)
            return _AllocatedGrowth(factor=factors[len(factors) // 4], largest_factor=largest)
    return _AllocatedGrowth()


@dataclass(slots=True)
class _Blocks:
    """What a line allocates in the forward pass of a step, and the largest block of them."""

    num_bytes: int = 0
    largest_bytes: int = 0


def _forward_blocks(window: LiveWindow, sources: Sources) -> dict[str, _Blocks]:
    """Of each of the user's lines."""
    stretches = [stretch for stretch in window.stretches if stretch.stage == "forward"]
    num_steps = len({stretch.step for stretch in stretches})
    found: defaultdict[str, _Blocks] = defaultdict(_Blocks)
    for stretch in stretches:
        for event in window.events[stretch.first : stretch.end]:
            site = next((site for site in reversed(event.stack) if sources.is_user_code(site)), None)
            if site is not None and event.num_bytes > 0:
                found[site].num_bytes += event.num_bytes
                found[site].largest_bytes = max(found[site].largest_bytes, event.num_bytes)
    for blocks in found.values():
        blocks.num_bytes //= num_steps
    return {site: blocks for site, blocks in found.items() if blocks.num_bytes}
