"""Which waits for a GPU are worth an edit, and the finding: what a step wins without them, and how that is known."""

from collections.abc import Sequence
from dataclasses import replace

from efprof.facts.gain.replay import gain_or_bound
from efprof.facts.run.run import Run
from efprof.facts.steps.step_times import StepTimes, part_of_steps, within_idle
from efprof.facts.time.host_waits import HostWaits, WaitingLine
from efprof.facts.time.launching_lines import what_tells_lines
from efprof.facts.time.trace_waits import Kind
from efprof.model import Evidence, Finding, Fix, Gain, Narrative

MIN_SHARE_OF_STEPS = 0.5
"""A line that waits in fewer steps is logging now and then, which is the cure."""
MIN_SHARE, MIN_GAIN = 0.01, 0.02
"""Of the step: a line that waits for less is not worth an edit; nor are all of them where the device has enough to do
meanwhile, so that the step without them takes as long."""


def worth_an_edit(run: Run, kind: Kind) -> list[WaitingLine]:
    """The lines that wait once per step or more; whatever they cost where no trace tells what the device does then."""
    waits = run.get(HostWaits)
    each = [line for line in waits.of(kind) if line.count >= 1 and line.share_of_steps >= MIN_SHARE_OF_STEPS]
    traced = [line for line in each if line.events and line.typical_ms >= MIN_SHARE * waits.step_ms]
    if (_ended(run, traced)[0].step_ms or 0.0) < MIN_GAIN * waits.step_ms:
        traced = []
    return [line for line in each if line in traced or not line.events]


def wait_finding(
    run: Run,
    lines: Sequence[WaitingLine],
    headline: str,
    message: str,
    why: str,
    fix: Fix,
    *means: str,
    within: str = "",
) -> Finding:
    """At the first of the lines; `means` are paragraphs of what it means."""
    line, waits, times = lines[0], run.get(HostWaits), run.find(StepTimes)
    gain, why_bound = _ended(run, lines)
    how = f"Each call was timed where it was made, in {waits.steps}."
    if waits.use:
        how += " The device is idle after a wait, in which it ran dry, until the host has launched its next work."
        how += f" {what_tells_lines(waits.use.window)}" * (not line.blame.line)
    found: list[Evidence] = []
    if times and len(line.ms) == len(times.steady):
        found.append(part_of_steps(times, "waits of this line", line.ms))
    return Finding(
        blame=line.blame,
        category="time",
        headline=headline,
        message=message,
        why=why,
        fix=fix,
        gain=gain,
        within=within,
        evidence=(*found, waits.table(), Narrative.of(*filter(None, (why, *means, why_bound, how)))),
    )


def _ended(run: Run, lines: Sequence[WaitingLine]) -> tuple[Gain, str]:
    """What a step wins without these waits, replayed where a trace has them; and why it is a bound, where it is one."""
    waits, ms = run.get(HostWaits), sum(line.typical_ms for line in lines)
    low, high = (sum(line.interval_ms[end] for line in lines) for end in (0, 1))
    what = "the time inside the calls that wait"
    bound = Gain(explanation=what, step_ms=ms, step_ms_interval=(low, high))
    if not waits.is_gpu:
        return bound, ""
    bound = replace(bound, step_ms_interval=(0.0, high), explanation=f"{what}; a later call may wait in their place")
    events = frozenset[int]().union(*(line.events for line in lines))
    if not events:
        return within_idle(run, bound) if not run.is_foreign else bound, ""
    what = f"{bound.explanation}; at most what the device waits for a launch"
    bound = replace(bound, explanation=what, step_ms=min(ms, waits.late_ms))
    gain, why_bound = gain_or_bound(run, events, bound, "without these waits")
    of_all = (gain.step_ms or 0.0, *(gain.step_ms_interval or (0.0, ms)))
    usual, low, high = (min(one, ms) for one in of_all)  # a replay has rare waits too
    return replace(gain, step_ms=usual, step_ms_interval=(low, high)), why_bound
