"""Whether later steps have more to do because they are larger: more samples, passes or gradients, larger tensors."""

import ast
import contextlib
import statistics
from collections import Counter
from collections.abc import Callable

from efprof.artifacts.steps import StepRecord
from efprof.facts.kept_growth import lengthened
from efprof.facts.line_times import LineTimes
from efprof.facts.live_memory import LiveMemory, LiveWindow
from efprof.facts.run import Run
from efprof.facts.slowdown import Part, Slowdown
from efprof.facts.sources import Sources
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
        before, after = (_typical(run, part, of) for part in (slowdown.early, slowdown.late))
        if before and after >= least * before:
            return f"a step has {after:,.0f} {name} there instead of {before:,.0f}"
    factor, largest_factor = _allocated_growth(run)
    if factor < least or (largest_factor < least and _goes_through_what_is_kept(run)):
        return ""  # where no tensor is larger, a loop through what the steps keep does the same more often
    return f"the lines of the forward pass allocate {format_value(factor, 'ratio')} as much there, as for longer data"


def _typical(run: Run, part: Part, of: Callable[[StepRecord], int | None]) -> float:
    """What the steps of a part had; one in which it was not counted has as many as the last that was."""
    known, found = 0, []
    for time in run.get(StepTimes).every:
        known = of(time.record) or known
        if part.first_step <= time.step <= part.last_step:
            found.append(known)
    return statistics.median(found)


def _allocated_growth(run: Run) -> tuple[float, float]:
    """By how much the bytes of most forward lines grew from the first window to the last, and any line's largest block.

    What keeps more with every step makes a line or two allocate more; longer data does it to all of them.
    """
    with contextlib.suppress(NotRecorded):
        windows = run.get(LiveMemory).windows
        (early, early_largest), (late, late_largest) = (
            _forward_bytes(window, run.get(Sources)) for window in (windows[0], windows[-1])
        )
        least = LEAST_LINE_SHARE * early.total()
        both = [site for site, num_bytes in early.items() if num_bytes >= least and site in late]
        factors = sorted(late[site] / early[site] for site in both)
        if len(factors) > 1:
            return factors[len(factors) // 4], max(late_largest[site] / early_largest[site] for site in both)
    return 1.0, 1.0


def _forward_bytes(window: LiveWindow, sources: Sources) -> tuple[Counter[str], Counter[str]]:
    """What each of the user's lines allocates in the forward pass of a step, and its largest block."""
    stretches = [stretch for stretch in window.stretches if stretch.stage == "forward"]
    num_steps = len({stretch.step for stretch in stretches})
    sizes, largest = Counter[str](), Counter[str]()
    for stretch in stretches:
        for event in window.events[stretch.first : stretch.end]:
            site = next((site for site in reversed(event.stack) if sources.is_user_code(site)), None)
            if site is not None and event.num_bytes > 0:
                sizes[site] += event.num_bytes
                largest[site] = max(largest[site], event.num_bytes)
    return Counter({site: size // num_steps for site, size in sizes.items() if size >= num_steps}), largest


def _goes_through_what_is_kept(run: Run) -> bool:
    """Whether a loop goes through what was counted to get longer, around a line that the last profiler window saw."""
    with contextlib.suppress(NotRecorded):
        sources, windows = run.get(Sources), run.get(LineTimes).windows
        seen = {(time.blame.file, time.blame.line) for window in windows[-1:] for time in window.lines.values()}
        return any(
            lengthened(run, name) is not None
            for file, line in seen
            if (tree := sources.tree(file)) is not None
            for name in _looped_around(tree, line)
        )
    return False


def _looped_around(tree: ast.Module, line: int) -> set[str]:
    """The names that the loops and comprehensions around a line go through."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=iterated, lineno=first, end_lineno=last):
                through = [iterated]
            case (
                ast.ListComp(generators=parts, lineno=first, end_lineno=last)
                | ast.SetComp(generators=parts, lineno=first, end_lineno=last)
                | ast.GeneratorExp(generators=parts, lineno=first, end_lineno=last)
                | ast.DictComp(generators=parts, lineno=first, end_lineno=last)
            ):
                through = [part.iter for part in parts]
            case _:
                continue
        if first <= line <= (last or first):
            names = {name_of(one) for part in through for one in ast.walk(part)}
            found |= {name for name in names if name is not None}
    return found
