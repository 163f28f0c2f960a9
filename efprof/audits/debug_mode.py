"""Modes for debugging that are left on, and calls for debugging in each step."""

from dataclasses import replace

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, file_of
from efprof.facts.steps.long_steps import LongSteps
from efprof.facts.steps.step_times import StepTimes, stall_lines, within_idle
from efprof.facts.time.anomaly_detection import anomaly_ms
from efprof.fixes.library_settings import library_call
from efprof.fixes.source_edit import delete_statement
from efprof.model import EnvironmentVariable, Examination, Finding, Fix, Gain, Severity, SourceLine, StallLine
from efprof.model.severity import most_severe, severity_by_share
from efprof.units import format_count, format_ms, format_share

MIN_PER_STEP = 0.5
"""A profiler that sees a few steps now and then, as torch's own examples do, is no mode that was left on."""
MIN_SHARE = 0.01
"""Of the step that `gc.collect` takes; the modes are told whatever is measured of them."""
ANOMALY, COLLECT = "anomaly detection", "gc.collect"
"""The first one took 57 % and 69 % of two small networks' steps: where it was not measured, that stands for it."""
CALLS = {
    ANOMALY: (
        "set_detect_anomaly",
        "Anomaly detection is on",
        "It formats a stack for each operation and checks each gradient for NaN.",
    ),
    "torch.profiler": ("profile", "The program's own profiler is on", "It records every operation of these steps."),
    COLLECT: ("collect", "The garbage collector runs in each step", "Each call looks through all Python objects."),
}
"""What may be deleted, the headline and the cause of each."""
COLLECTIVES = "The host waits for each collective before it goes on."
VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "The host waits for each kernel before it launches the next one.",
    "NCCL_BLOCKING_WAIT": COLLECTIVES,
    "TORCH_NCCL_BLOCKING_WAIT": COLLECTIVES,
}
UNMEASURED = Gain.none("what it costs was not measured")


def debug_mode(run: Run) -> Examination:
    """Find modes for debugging that were left on.

    ## What it finds
    Anomaly detection, or a profiler of the program's own, in at least half of the steps; `gc.collect()` in each step;
    on a GPU `CUDA_LAUNCH_BLOCKING` and NCCL's blocking wait.

    ## Why it matters
    They serve to find a fault. Training with them takes up to three times as long.

    ## Fix
    Delete the line, or unset the variable.

    ## Predicted gain
    The time inside `gc.collect`; of the program's profiler the long steps in which it puts its records together. Else
    none: of anomaly detection samples and a profiler window see a part.
    """
    steps, step_ms = run.get(StepTimes).at_least(1), run.get(StepTimes).median_ms()
    often = [line for line in stall_lines(run) if line.call in CALLS and line.count_per_step >= MIN_PER_STEP]
    costly = [line for line in often if line.call != COLLECT or line.step_ms >= MIN_SHARE * step_ms]
    found = [_left_on(run, line, step_ms) for line in costly]
    values = run.run_file.environment | run.run_file.settings
    if run.is_on_cuda:
        found += [_set(run, name, values[name]) for name in VARIABLES if values.get(name) not in (None, "", "0")]
    looked_at = f"{format_count(len(steps), 'step')}: anomaly detection, profilers, garbage, blocking launches"
    return Examination(looked_at=looked_at, findings=tuple(found))


def _left_on(run: Run, line: StallLine, step_ms: float) -> Finding:
    message, gain = f"Steps run with {line.call} on", UNMEASURED
    severity: Severity = "high" if line.call == ANOMALY else "medium"
    cost_ms = {ANOMALY: anomaly_ms, "torch.profiler": _profiler_ms}.get(line.call, lambda _: line.step_ms)(run)
    if cost_ms:
        share = "on average" if cost_ms > step_ms else format_share(cost_ms / step_ms)
        message = f"{format_ms(cost_ms)} of each step ({share}) go to {line.call}"
        gain = within_idle(run, Gain.of_step("the time that was seen in it; more may go with it", cost_ms))
    if cost_ms and line.call == ANOMALY:
        message, gain = f"At least {message}", Gain.none("what was seen of it is a part: the whole saves more")
        severity = most_severe("medium", severity_by_share(cost_ms / step_ms))
    (name, headline, why), called, code = CALLS[line.call], library_call(line.library, line.call), line.blame.text
    edit = delete_statement(file_of(run, line.blame), line.blame.line, name)
    told = f"Delete `{code}`" if edit else f"Take {line.call} out of `{code}`"
    told += "; dedent the block where nothing else is left" * code.startswith("with ")
    fix = called.fix or Fix.by(edit, "review", f"{told}; use it only while you look for a fault.")
    message, told_of = f"{message}{called.by}, at {line.blame}.", (f"{headline}{called.at}", why)
    return replace(_finding(line.blame, told_of, message, fix, gain, severity), within=called.function)


def _profiler_ms(run: Run) -> float:
    found = run.find(LongSteps)
    return 1000 * found.profiler_s / len(run.get(StepTimes).every) if found else 0.0


def _set(run: Run, name: str, value: str) -> Finding:
    """At the line that names it, where the program sets it itself."""
    variable = EnvironmentVariable(name=name, old=value, new="0")
    blame, fix = run.get(Sources).first_with(name), Fix.by(variable, "safe", f"Unset {name}.")
    if blame is None:
        blame = SourceLine(file="the environment", function=name)
    else:
        fix = Fix.by_hand(f"Delete `{blame.text}`.")
    message = f"{name}={value} was set for all steps, in {blame}."
    return _finding(blame, (f"{name} is set", VARIABLES[name]), message, fix, UNMEASURED)


def _finding(
    blame: SourceLine, told: tuple[str, str], message: str, fix: Fix, gain: Gain, severity: Severity = "medium"
) -> Finding:
    return Finding(
        blame=blame,
        category="time",
        headline=told[0],
        message=message,
        why=told[1],
        fix=fix,
        gain=gain,
        severity=severity,  # at least medium: these modes cost far more than a twentieth, measured in this run or not
    )
