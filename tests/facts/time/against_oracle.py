"""The engine's figures of a trace beside the oracle's."""

from collections import Counter
from pathlib import Path

from efprof.artifacts.foreign import as_run
from efprof.facts.run.run import Run, open_run
from efprof.facts.time.idle_causes import RUN_BACKWARD, FirstCalls, by_kind
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_input import TraceInput
from tests.facts.time.oracle import Truth, truth_of

MIN_IDLE = 0.1
TOLERANCE, LEAST_MS = 0.005, 0.002
"""Times are rounded to microseconds in old files."""


def differences(path: Path) -> dict[str, tuple[float, float]]:
    """The engine's figure and the oracle's, of each that is not the same."""
    return unlike(path, truth_of(path))


def unlike(path: Path, truth: Truth) -> dict[str, tuple[float, float]]:
    """As `differences`, of an oracle that was asked already."""
    with as_run(path) as folder:
        run = open_run(folder)
        ours, waits = _figures(run), _idle_by_name(run)
    theirs = {name: float(getattr(truth, name)) for name in ours}
    if waits:  # each stretch in which the device waits for the host is somebody's, and once
        ours["idle causes"], theirs["idle causes"] = waits.total() / 1e6, truth.not_launched_ms * truth.num_steps
    for name, ms in truth.in_function:
        if ms > MIN_IDLE * truth.not_launched_ms and not RUN_BACKWARD.search(name):
            # What another thread did meanwhile, for which that one waited, is in it too.
            found_ms = waits[name] / 1e6 / truth.num_steps
            ours[name], theirs[name] = min(ms, found_ms), ms
    return {
        name: (ours[name], theirs[name])
        for name in ours
        if abs(ours[name] - theirs[name]) > LEAST_MS + TOLERANCE * max(ours[name], theirs[name])
    }


def _idle_by_name(run: Run) -> Counter[str]:
    """Nanoseconds in which the device waits for the host, by the name of what that is innermost in."""
    window = run.get(TimeUse).window
    found = Counter[str]()
    if window.device is not None:
        for spent in by_kind(window, run.get(FirstCalls).events).values():
            for event, spent_ns in spent.items():
                found[window.trace.text(event) if event >= 0 else ""] += spent_ns
    return found


def _figures(run: Run) -> dict[str, float]:
    window = run.get(TimeUse).window
    per_step, device = 1 / 1e6 / window.num_steps, window.device
    return {
        "num_warm_up": len(window.warm_up),
        "num_steps": len(window.steps),
        "step_ms": window.step_ms,
        "device_period_ms": device.span_ns * per_step if device else 0.0,
        "busy_ms": device.busy_ns * per_step if device else 0.0,
        "not_launched_ms": device.idle_ns["the host had launched nothing"] * per_step if device else 0.0,
        "exposed_ms": device.exposed_ns * per_step if device else 0.0,
        "loader_ms": run.get(TraceInput).mean_ms,
        "first_calls_ms": run.get(FirstCalls).total_ns / 1e6,
    }
