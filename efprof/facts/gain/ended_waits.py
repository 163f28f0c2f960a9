"""Which waits for a GPU are worth an edit, and the finding: what a step wins without them, and how that is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from efprof.facts.gain.replay import gain_or_bound
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.step_times import StepTimes, part_of_steps, within_idle
from efprof.facts.time.host_waits import HostWaits, WaitingLine
from efprof.facts.time.launching_lines import what_tells_lines
from efprof.facts.time.trace_waits import Kind
from efprof.model import Evidence, Finding, Fix, Gain, Narrative, Severity
from efprof.units import format_ms

MIN_SHARE_OF_STEPS = 0.5
"""A line that waits in fewer steps is logging now and then, which is the cure."""
MIN_SHARE, MIN_GAIN = 0.01, 0.02
"""Of the step: a line that waits for less is not worth an edit; nor are all of them where the device has enough to do
meanwhile, so that the step without them takes as long."""
HIGH_COST, MEDIUM_COST = 0.1, 0.01


def worth_an_edit(run: Run, kind: Kind) -> tuple[list[WaitingLine], str]:
    """The lines that wait once per step or more, and a sentence on what the step wins without all of them.

    Where no trace tells what the device does meanwhile, whatever they cost.
    """
    waits = run.get(HostWaits)
    each = [line for line in waits.of(kind) if line.count >= 1 and line.share_of_steps >= MIN_SHARE_OF_STEPS]
    traced = [line for line in each if line.events and line.typical_ms >= MIN_SHARE * waits.step_ms]
    gain_ms = _ended(run, traced)[0].step_ms or 0.0
    if gain_ms < MIN_GAIN * waits.step_ms:
        traced = []
    lines = [line for line in each if line in traced or not line.events]
    return lines, f" Without all {len(traced)} such lines it takes {format_ms(gain_ms)} less." * (len(traced) > 1)


def wait_finding(
    run: Run,
    lines: Sequence[WaitingLine],
    *,
    headline: str,
    message: str,
    fix: Callable[[float], Fix],
    meaning: tuple[str, ...],
) -> Finding:
    """At the first of the lines; `fix` is given the share of the step that it saves."""
    waits, (gain, why_bound) = run.get(HostWaits), _ended(run, lines)
    share = (gain.step_ms or 0.0) / waits.step_ms
    severity: Severity = "high" if share >= HIGH_COST else "medium" if share >= MEDIUM_COST else "low"
    return Finding(
        blame=lines[0].blame,
        category="time",
        headline=headline,
        message=message,
        fix=fix(share),
        gain=gain,
        evidence=_evidence(run, lines[0], *meaning, why_bound),
        severity=severity if waits.is_gpu else "low",
    )


def _ended(run: Run, lines: Sequence[WaitingLine]) -> tuple[Gain, str]:
    """What a step wins without these waits, replayed where a trace has them; and why it is a bound, where it is one."""
    waits = run.get(HostWaits)
    bound = waits.bound(lines)
    events = frozenset[int]().union(*(line.events for line in lines))
    if not events:
        return within_idle(run, bound) if waits.is_gpu and not run.is_foreign else bound, ""
    gain, why_bound = gain_or_bound(run, events, bound, "without these waits")
    most_ms = bound.step_ms or 0.0  # of the usual step: a replay has rare ones too
    low, high = gain.step_ms_interval or (0.0, most_ms)
    interval = min(low, most_ms), min(high, most_ms)
    return replace(gain, step_ms=min(gain.step_ms or 0.0, most_ms), step_ms_interval=interval), why_bound


def _evidence(run: Run, line: WaitingLine, *paragraphs: str) -> tuple[Evidence, ...]:
    waits, times = run.get(HostWaits), run.find(StepTimes)
    how = f"Each call was timed where it was made, in {waits.steps}."
    if waits.use:
        how += " The device is idle after a wait, in which it ran dry, until the host has launched its next work."
        how += f" {what_tells_lines(waits.use.window)}" * (not line.blame.line)
    found: list[Evidence] = [run.get(Sources).snippet(line.blame)] if line.blame.text else []
    if times and len(line.ms) == len(times.steady):
        found.append(part_of_steps(times, "waits of this line", line.ms))
    return (*found, waits.table(), Narrative.of(*filter(None, (*paragraphs, how))))
