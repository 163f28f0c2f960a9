"""The engine's figures of a trace beside the oracle's."""

from pathlib import Path

from efprof.artifacts.foreign import as_run
from efprof.facts.run.run import Run, open_run
from efprof.facts.time.idle_causes import FirstCalls
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_input import TraceInput
from tests.facts.time.oracle import Truth, truth_of

TOLERANCE, LEAST_MS = 0.005, 0.002
"""Times are rounded to microseconds in old files."""


def differences(path: Path) -> dict[str, tuple[float, float]]:
    """The engine's figure and the oracle's, of each that is not the same."""
    return unlike(path, truth_of(path))


def unlike(path: Path, truth: Truth) -> dict[str, tuple[float, float]]:
    """As `differences`, of an oracle that was asked already."""
    with as_run(path) as folder:
        ours = _figures(open_run(folder))
    theirs = {name: float(getattr(truth, name)) for name in ours}
    return {
        name: (ours[name], theirs[name])
        for name in ours
        if abs(ours[name] - theirs[name]) > LEAST_MS + TOLERANCE * max(ours[name], theirs[name])
    }


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
