"""How long the device of a trace waits for the host to launch the next kernel, and what the host launches meanwhile."""

import re
from collections import Counter
from typing import Self

import numpy as np

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.call_paths import HOST, LAUNCHES
from efprof.facts.time.device_lanes import Spans, on_device_between, overlap_ns, spans_of
from efprof.facts.time.idle_causes import MAX_GAP_NS, MEMORY
from efprof.facts.time.launching_lines import launching_line
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
class LaunchUse:
    """What was launched in a window, and how long the device waited for no other reason."""

    window: TraceWindow
    waiting_ms: float
    """Of each step as it was recorded, in which the device waits for a launch."""
    launches: Counter[str]
    kernel_us: float
    host_us: float
    """Of the host for each launch, without its waits."""
    idle_ms: float
    """Of the step, for whatever reason."""
    recording_ms: float
    """What the profiler added to the host's step: measured where steps outside the window are known."""
    line: SourceLine | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From the last window; raises NotRecorded where there is no trace."""
        use = run.get(TimeUse)
        window = use.window
        start_ns, end_ns = window.bounds
        trace, path_of = window.trace, window.paths.of_event
        launched = [event for event in on_device_between(trace, *window.device_bounds).tolist() if event in path_of]
        gaps, waits = window.gaps if use.device else [], _host_waits(window)
        free = [
            gap
            for gap in gaps
            if gap.cause == "the host had launched nothing" and not overlap_ns(waits, gap.start_ns, gap.end_ns)
        ]
        short = [gap for gap in free if gap.length_ns <= MAX_GAP_NS]
        chosen = [(path, gap.length_ns) for gap in short if (path := path_of.get(gap.next_event))]
        others_ns = sum(gap.length_ns for gap in free if gap.length_ns > MAX_GAP_NS)
        host_ns = end_ns - start_ns - overlap_ns(waits, start_ns, end_ns) - others_ns
        return cls(
            window=window,
            waiting_ms=use.per_step_ms(sum(length_ns for _, length_ns in chosen)),
            launches=Counter(path_of[event].stage for event in launched),
            kernel_us=int(trace.duration_ns[launched].sum()) / 1e3 / max(1, len(launched)),
            host_us=max(0, host_ns) / 1e3 / max(1, len(launched)),
            idle_ms=use.per_step_ms(sum(gap.length_ns for gap in gaps)),
            recording_ms=_recording_ms(window),
            line=launching_line(((path, 1.0) for path, _ in chosen), run.get(Sources)),
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
    def num_launches(self) -> float:
        """Per step."""
        return self.launches.total() / self.window.num_steps

    @property
    def setup(self) -> frozenset[str]:
        """What of `foreach`, `graphs` and `compile` is used already."""
        found = {"foreach": FOREACH, "graphs": GRAPHS, "compile": COMPILED}
        texts = self.window.trace.texts
        return frozenset(name for name, pattern in found.items() if any(map(pattern.search, texts)))


def _host_waits(window: TraceWindow) -> Spans:
    """The stretches in which the host waits for the device or for memory, or takes a batch from its loader."""
    trace = window.trace
    waits = np.union1d(waiting_calls(trace), np.flatnonzero(trace.matches(MEMORY) & trace.is_of(*LAUNCHES)))
    found = [*map(trace.span, waits.tolist())]
    found += [(start, end) for start, end, stage, _ in window.paths.stages if stage == "data"]
    return spans_of(found)


def _recording_ms(window: TraceWindow) -> float:
    if window.steady_ms is not None:
        return max(0.0, window.step_ms - window.steady_ms)
    events = window.trace.is_of(*HOST) & window.trace.overlaps(*window.bounds)
    return int(np.count_nonzero(events)) * RECORDING_MS / window.num_steps


def launch_evidence(use: LaunchUse) -> Narrative:
    """How the figures are known."""
    known = use.window.steady_ms is not None
    how = "measured on steps outside of the window" if known else "estimated from the number of recorded events"
    added = format_ms(min(use.waiting_ms, use.recording_ms))
    return Narrative.of(
        "Each kernel is over before the host has launched the next one, so the device stands still in between.",
        f"Counted are gaps of up to {format_ms(MAX_GAP_NS / 1e6)} that end with a launch and touch no synchronisation, "
        f"no allocation and no fetch of a batch: {format_ms(use.waiting_ms)} of {format_ms(use.idle_ms)} per step in "
        f"which the device is idle. What the profiler adds to the host is {how} and taken off, {added} of them.",
        "A trace with `with_stack=True` slows the host most. Record one without it: where the device is busy there, "
        "launching costs nothing.",
    )
