"""What the host launches on the device of a trace, how long each launch takes it, and what spares launches already."""

import re
from collections import Counter
from typing import Self

import numpy as np

from efprof.facts.run.run import Run
from efprof.facts.time.call_paths import HOST
from efprof.facts.time.device_lanes import on_device_between, overlap_ns, spans_of
from efprof.facts.time.idle_causes import MAX_GAP_NS, IdleCauses
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_waits import waiting_calls
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import Narrative, SourceLine, frozen_dataclass
from efprof.units import format_ms

RECORDING_MS = 0.0006
"""What the profiler adds to the host for each event: 0.35 us (stacks alone) to 0.62 us (shapes) were measured with
torch 2.13 on a CPU, where nothing records launches."""
FOREACH = re.compile(r"multi_tensor_apply|_foreach_|_fused_(adam|sgd|adagrad)|Fused(Adam|SGD|LAMB)|fused_adam", re.I)
GRAPHS = re.compile(r"^(cuda|hip)GraphLaunch")
COMPILED = re.compile(r"^triton_|CompiledFxGraph|^CompiledFunction|^Torch-Compiled Region")


@frozen_dataclass
class Launches:
    """Of a window's steps: launches by stage, and milliseconds of each step as it was recorded.

    The device is idle for `idle_ms`, for `waiting_ms` of these since the host prepares the next launch.
    """

    window: TraceWindow
    by_stage: Counter[str]
    kernel_us: float
    host_us: float
    """Of the host for each launch, without its waits and what launches nothing."""
    idle_ms: float
    waiting_ms: float
    recording_ms: float
    """What the profiler added to the host's step: measured where steps outside the window are known."""
    line: SourceLine | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From the window that tells where time goes; raises NotRecorded where there is none."""
        window, causes = run.get(TimeUse).window, run.get(IdleCauses)
        launched = on_device_between(window.trace, *window.device_bounds).tolist()
        launched = [event for event in launched if event in window.paths.of_event]
        cause, num = causes.of("launches"), max(1, len(launched))
        others_ns = sum(one.spent_ns for one in causes.causes if one.kind not in ("launches", "loader", "wait"))
        start_ns, end_ns = window.bounds
        host_ns = max(0, end_ns - start_ns - _waiting_ns(window) - others_ns)
        per_step = 1 / 1e6 / window.num_steps
        return cls(
            window=window,
            by_stage=Counter(window.paths.of_event[event].stage for event in launched),
            kernel_us=int(window.trace.duration_ns[launched].sum()) / 1e3 / num,
            host_us=host_ns / 1e3 / num,
            idle_ms=sum(gap.length_ns for gap in window.gaps) * per_step if window.device else 0.0,
            waiting_ms=cause.spent_ns * per_step if cause else 0.0,
            recording_ms=_recording_ms(window),
            line=cause.blame if cause else None,
        )

    @property
    def lost_ms(self) -> float:
        """What it waits without what recording itself added to it, at most."""
        return max(0.0, self.waiting_ms - self.recording_ms)

    @property
    def step_ms(self) -> float:
        """The step without the profiler."""
        return max(0.0, self.window.step_ms - self.recording_ms)

    @property
    def per_step(self) -> float:
        return self.by_stage.total() / self.window.num_steps

    @property
    def setup(self) -> frozenset[str]:
        """What of `foreach`, `graphs` and `compile` is used already."""
        found = {"foreach": FOREACH, "graphs": GRAPHS, "compile": COMPILED}
        texts = self.window.trace.texts
        return frozenset(name for name, pattern in found.items() if any(map(pattern.search, texts)))

    def evidence(self) -> Narrative:
        """How the figures are known."""
        known = self.window.steady_ms is not None
        how = "measured on steps outside of the window" if known else "estimated from the number of recorded events"
        added = format_ms(min(self.waiting_ms, self.recording_ms))
        return Narrative.of(
            "Each kernel is over before the host has launched the next one, so the device stands still in between.",
            f"Counted are gaps of up to {format_ms(MAX_GAP_NS / 1e6)} that end with a launch, and what operators that "
            f"launch take of longer ones: {format_ms(self.waiting_ms)} of {format_ms(self.idle_ms)} per step in which "
            f"the device is idle. What the profiler adds to the host is {how} and taken off, {added} of them.",
            "A trace with `with_stack=True` slows the host most. Record one without it: where the device is busy "
            "there, launching costs nothing.",
        )


def _waiting_ns(window: TraceWindow) -> int:
    """How long the host waits for the device, or takes a batch from its loader."""
    found = [*map(window.trace.span, waiting_calls(window.trace).tolist())]
    found += [(start, end) for start, end, stage, _ in window.paths.stages if stage == "data"]
    return overlap_ns(spans_of(found), *window.bounds)


def _recording_ms(window: TraceWindow) -> float:
    if window.steady_ms is not None:
        return max(0.0, window.step_ms - window.steady_ms)
    events = window.trace.is_of(*HOST) & window.trace.overlaps(*window.bounds)
    return int(np.count_nonzero(events)) * RECORDING_MS / window.num_steps
