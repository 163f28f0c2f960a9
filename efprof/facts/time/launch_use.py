"""How long the device of a trace waits for the host to launch the next kernel, and what the host launches meanwhile."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.call_paths import HOST, LAUNCHES
from efprof.facts.time.device_lanes import IdleGap, Spans, length, on_device_between, overlap_ns, union
from efprof.facts.time.launching_lines import LaunchingLine, launching_line
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_waits import waiting_calls
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import Narrative
from efprof.units import format_ms

MAX_GAP_NS = 1_000_000
"""Longer, the host did something else than launching. In 22 real traces the gaps between launches are below 0.5 ms, and
what lies above 1 ms is loading a library, compiling, or Python that launches nothing."""
RECORDING_MS = 0.0006
"""What the profiler adds to the host for each event: 0.35 us (stacks alone) to 0.62 us (shapes) were measured with
torch 2.13 on a CPU, where nothing records launches."""
MEMORY = re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc)")
"""Calls in which the host waits for memory; in these and in those that wait for the device it launches nothing."""
FOREACH = re.compile(r"multi_tensor_apply|_foreach_|_fused_(adam|sgd|adagrad)|Fused(Adam|SGD|LAMB)|fused_adam", re.I)
GRAPHS = re.compile(r"^(cuda|hip)GraphLaunch")
COMPILED = re.compile(r"^triton_|CompiledFxGraph|^CompiledFunction|^Torch-Compiled Region")


@dataclass(frozen=True, kw_only=True)
class LaunchUse:
    """What was launched in a window, and the stretches in which the device waited for no other reason.

    `gaps` have the path that was launched from after each; `launches` count what was launched by stage.
    """

    window: TraceWindow
    gaps: tuple[tuple[int, CallPath], ...]
    launches: Counter[str]
    kernel_us: float
    host_us: float
    """Of the host for each launch, without its waits."""
    idle_ms: float
    """Of the step, for whatever reason."""
    recording_ms: float
    """What the profiler added to the host's step: measured where steps outside the window are known."""
    line: LaunchingLine | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From the last window; raises NotRecorded where there is no trace."""
        use = run.get(TimeUse)
        window = use.window
        start_ns, end_ns = window.bounds
        gaps = window.gaps if use.device else []
        launched = _launched(window, start_ns, end_ns)
        busy = [gap for gap in gaps if gap.cause == "the host had launched nothing"]
        waits = _host_waits(window, start_ns, end_ns)
        chosen = list(_while_launching(window, busy, waits))
        others_ns = sum(gap.length_ns for gap in busy if gap.length_ns > MAX_GAP_NS and not _touches(waits, gap))
        host_ns = end_ns - start_ns - length(waits) - others_ns
        return cls(
            window=window,
            gaps=tuple(chosen),
            launches=Counter(path.stage for _, path in launched),
            kernel_us=sum(length_ns for length_ns, _ in launched) / 1e3 / max(1, len(launched)),
            host_us=max(0, host_ns) / 1e3 / max(1, len(launched)),
            idle_ms=use.per_step_ms(sum(gap.length_ns for gap in gaps)),
            recording_ms=_recording_ms(window, start_ns, end_ns),
            line=launching_line(((path, 1.0) for _, path in chosen), run.get(Sources)),
        )

    @property
    def waiting_ms(self) -> float:
        """Of each step as it was recorded, in which the device waits for a launch."""
        return sum(length_ns for length_ns, _ in self.gaps) / 1e6 / self.window.num_steps

    @property
    def lost_ms(self) -> float:
        """The same without what recording itself added to it, at most."""
        return max(0.0, self.waiting_ms - self.recording_ms)

    @property
    def step_ms(self) -> float:
        """The step without the profiler."""
        return max(0.0, self.window.step_ms - self.recording_ms)

    @property
    def num_launches(self) -> float:
        """Per step."""
        return self.launches.total() / self.window.num_steps

    @cached_property
    def setup(self) -> frozenset[str]:
        """What of `foreach`, `graphs` and `compile` is used already."""
        found = {"foreach": FOREACH, "graphs": GRAPHS, "compile": COMPILED}
        texts = self.window.trace.texts
        return frozenset(name for name, pattern in found.items() if any(map(pattern.search, texts)))


def _host_waits(window: TraceWindow, start_ns: int, end_ns: int) -> Spans:
    """The stretches in which the host waits, or takes a batch from its loader."""
    trace = window.trace
    waits = np.union1d(waiting_calls(trace), np.flatnonzero(trace.matches(MEMORY) & trace.is_of(*LAUNCHES)))
    found = [*zip(trace.start_ns[waits].tolist(), trace.end_ns[waits].tolist(), strict=True)]
    found += [(start, end) for start, end, stage, _ in window.paths.stages if stage == "data"]
    starts, ends = np.array(found, np.int64).reshape(-1, 2).T.clip(start_ns, end_ns)
    return union(starts[ends > starts], ends[ends > starts])


def _launched(window: TraceWindow, start_ns: int, end_ns: int) -> list[tuple[int, CallPath]]:
    """How long the device works on each launch in the stretch, and the path it was made from."""
    trace = window.trace
    work = on_device_between(trace, start_ns, end_ns).tolist()
    found = ((int(trace.duration_ns[event]), window.paths.of_event.get(event)) for event in work)
    return [(length_ns, path) for length_ns, path in found if path is not None]


def _while_launching(window: TraceWindow, gaps: list[IdleGap], waits: Spans) -> Iterator[tuple[int, CallPath]]:
    for gap in gaps:
        path = window.paths.of_event.get(gap.next_event) if gap.next_event is not None else None
        if path is not None and gap.length_ns <= MAX_GAP_NS and not _touches(waits, gap):
            yield gap.length_ns, path


def _touches(waits: Spans, gap: IdleGap) -> bool:
    return overlap_ns(waits, gap.start_ns, gap.end_ns) > 0


def _recording_ms(window: TraceWindow, start_ns: int, end_ns: int) -> float:
    if window.steady_ms is not None:
        return max(0.0, window.step_ms - window.steady_ms)
    events = window.trace.is_of(*HOST) & (window.trace.start_ns < end_ns) & (window.trace.end_ns > start_ns)
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
