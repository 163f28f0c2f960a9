"""Later steps that take longer than the first ones."""

from dataclasses import replace

from efprof.facts.growth.grown_line import (
    GrownLine,
    GrownLines,
    how_slowdown_is_known,
    larger_steps,
    longer_containers,
    why_it_grew,
)
from efprof.facts.input.input_waits import InputWaits
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.facts.steps.slowdown import Slowdown
from efprof.facts.steps.step_times import StepTimes, part_of_steps
from efprof.model import Examination, Finding, Fix, Gain, SourceLine, ThinEvidence
from efprof.units import format_ms, format_value

MIN_RATIO = 1.25
"""Thirds of one run differ by up to 15 % on a shared machine without any cause in the program."""
MIN_CERTAIN_RATIO = 1.1
"""The interval's lower end must clear a tenth: less may be caches that fill and clocks that fall."""


def step_slowdown(run: Run) -> Examination:
    """Find steps that get longer while the run goes on.

    ## What it finds
    A last third of the steps that takes a quarter longer than the first, the stage that grew, and the line whose time
    grew between the first profiler window and the last. Where steps became larger, it is silent.

    ## Why it matters
    Work that grows with the number of steps makes a training of n steps cost n squared.

    ## Fix
    Keep a running value instead of going through all earlier ones, or bound the container to its last entries.

    ## Predicted gain
    The median step of the last third less that of the first eighth: what a late step of this run would have saved.
    """
    slowdown = run.get(Slowdown)
    early, late = slowdown.early, slowdown.late
    looked_at = f"{early.span} against {late.span}, which take {format_value(slowdown.ratio, 'ratio')} as long"
    if slowdown.ratio < MIN_RATIO:
        return Examination(looked_at=looked_at)
    lines = run.get(GrownLines)
    is_explained = lines.line is not None and lines.line.explains(slowdown)
    if slowdown.ratio_interval[0] <= MIN_CERTAIN_RATIO:
        raise ThinEvidence(f"Unclear: {looked_at}, but the interval reaches down to {slowdown.ratio_interval[0]:.2f}x.")
    if slowdown.saved_interval_ms[0] <= 0:
        raise ThinEvidence(f"Unclear: {looked_at}, but the last third and the first eighth may be alike.")
    if doubt := slowdown.doubt(is_gpu=bool(run.run_file.devices), is_explained=is_explained):
        raise ThinEvidence(f"Unclear: {looked_at}, but {doubt}.")
    if larger := larger_steps(run):
        raise ThinEvidence(f"Unclear: {looked_at}, but {larger}.")
    if lines.line is None and (slowdown.is_uniform or lines.is_compared):
        why = "all stages grew alike, as on a machine that became busier" if slowdown.is_uniform else lines.reason
        raise ThinEvidence(f"Unclear: {looked_at}, but {why}.")
    return Examination(looked_at=looked_at, findings=(_finding(run, slowdown, lines),))


def _finding(run: Run, slowdown: Slowdown, lines: GrownLines) -> Finding:
    times, early, late = run.get(StepTimes), slowdown.early, slowdown.late
    saved_ms, low, high = (slowdown.device_share * ms for ms in (slowdown.saved_ms, *slowdown.saved_interval_ms))
    on_device = ", as far as the device takes longer too" if slowdown.device_share < 1 else ""
    basis = f"the median step of the last third less that of the first eighth{on_device}"
    return Finding(
        blame=lines.line.blame if lines.line else _stage_line(run, slowdown),
        category="time",
        headline="Later steps take longer",
        message=f"A step takes {format_ms(early.typical_ms)} in {early.span} and {format_ms(late.typical_ms)} in "
        f"{late.span}.",
        why=why_it_grew(slowdown, lines),
        fix=_fix(run, slowdown, lines.line),
        gain=replace(Gain.of_step(basis, saved_ms, (low, high)), late_step_ms=slowdown.last_ms),
        evidence=(
            part_of_steps(times, slowdown.stage, [time.of(slowdown.stage) for time in times.steady]),
            how_slowdown_is_known(slowdown, lines),
        ),
    )


def _stage_line(run: Run, slowdown: Slowdown) -> SourceLine:
    """Where the stage that grew is begun, as far as that is recorded."""
    loader = run.get(InputWaits).loader
    site = loader.site if slowdown.stage == "data" and loader else run.get(StepTimes).backward_site
    if site is None:
        raise ThinEvidence(f"Later steps take {slowdown.ratio:.2f}x as long, but no line of the step was recorded.")
    return line_at(run, site)


def _fix(run: Run, slowdown: Slowdown, line: GrownLine | None) -> Fix:
    rate = f"{format_ms(slowdown.growth_per_step_ms)} more with each step"
    meanwhile = longer_containers(run)
    if line is None:
        return Fix.by_hand(f"Find what the {slowdown.stage} stage does more of: {rate}.{meanwhile}")
    return Fix.by_hand(f"Bound the work of this line: {rate}.{meanwhile}")
