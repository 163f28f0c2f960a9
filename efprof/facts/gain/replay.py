"""A stretch of a trace run again, with some of the host's time taken out: what its steps would take without a fault."""

import re
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from efprof.artifacts.trace.events import Array
from efprof.facts.gain.schedule import ANY_STREAM, Call, Kernel, Schedule, Wait, schedule_of
from efprof.facts.run.run import Run
from efprof.facts.time.call_paths import HOST
from efprof.facts.time.device_lanes import union
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import Gain
from efprof.units import format_share

MAX_ERROR = 0.05
"""Of the recorded length. Of 22 real traces 19 are at most 1 % off, one with CUDA graphs is 57 % off."""
MAX_AT_ONCE = 0.01
"""Of the calls: those of an autograd engine and of the thread that waits for it did not overlap in ten real traces."""
MAX_UNLAUNCHED = 0.01
"""Of the device's time: its kernels start whenever they like, and each may hold up all that follow."""
KERNEL_LAUNCH = re.compile(r"^(cuda|cu|hip)(Ext)?(Module)?LaunchKernel")
GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
BOTH = "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The steps of a window, as recorded and as replayed."""

    window: TraceWindow
    schedule: Schedule

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Of the window that tells where the time goes; raises NotRecorded where there is none."""
        return cls.of(run.get(TimeUse).window)

    @classmethod
    def of(cls, window: TraceWindow) -> Self:
        """From the start of its first step to the end of its last.

        Where a trace does not tell its steps, they end with the device: the host's end is that of its last event.
        """
        (start_ns, end_ns), ends = window.bounds, window.trace.end_ns[window.trace.is_of(*HOST)]
        if not window.has_steps and len(ends):
            end_ns = int(ends.max())
        end_ns = max(end_ns, start_ns + 1)  # nothing lasts less, so that shares can be told
        return cls(window=window, schedule=schedule_of(window.trace, start_ns, end_ns))

    @property
    def recorded_ms(self) -> float:
        """Until the host has ended the last step and the device all that was launched in it."""
        ends = (kernel.end_ns for call in self.schedule.calls for kernel in call.kernels)
        return (max(self.schedule.end_ns, max(ends, default=0)) - self.schedule.start_ns) / 1e6

    @cached_property
    def replayed_ms(self) -> float:
        """The same, of the unmodified replay."""
        return self.replayed_without(())

    def replayed_without(self, removed: Collection[int]) -> float:
        """The same where these events of the host take no time, and what they wait for is not waited for."""
        events, trace = np.array(sorted(removed), np.int64), self.window.trace
        spans = union(trace.start_ns[events], trace.end_ns[events])
        return _Simulation(self.schedule, _Removed(*spans)).length_ns() / 1e6

    @cached_property
    def refusal(self) -> str:
        """Why nothing can be told by it, and what to record to change that; empty where it can."""
        missing_ns, names = self.schedule.unlaunched_ns, self.window.trace.texts
        all_ns, error = self.schedule.kernel_ns + missing_ns, abs(self.replayed_ms / self.recorded_ms - 1)
        if not all_ns and any(KERNEL_LAUNCH.match(name) for name in names):
            return f"its kernels were not recorded: profile with {BOTH}"
        if any(GRAPH_LAUNCH.match(name) for name in names):
            return "it launches CUDA graphs, whose kernels no flag gives a launch of their own: profile without graphs"
        if missing_ns > MAX_UNLAUNCHED * all_ns:
            share = format_share(missing_ns / all_ns)
            return f"kernels of {share} of the device's time have no launch in the trace: profile with {BOTH}"
        at_once = sum(call.after < place - 1 for place, call in enumerate(self.schedule.calls))
        if at_once > MAX_AT_ONCE * len(self.schedule.calls):
            return "several threads launch at once, and no flag tells which waits for which"
        if error > MAX_ERROR:
            which = "`experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)`"
            return f"unmodified it is {format_share(error)} off: {which} records what waits for what"
        return ""

    def gain_without(self, removed: Collection[int], what: str) -> Gain:
        """What a step wins where these events take no time, `what` in words, if there is no `refusal`."""
        error_ms = abs(self.replayed_ms - self.recorded_ms)
        saved_ms = max(0.0, self.replayed_ms - self.replayed_without(removed))
        to_step, off = self.window.scale / self.window.num_steps, format_share(error_ms / self.recorded_ms)
        return Gain(
            basis="replay",
            explanation=f"the steps of the trace replayed {what}; unmodified, the replay is {off} off",
            step_ms=saved_ms * to_step,
            step_ms_interval=(max(0.0, saved_ms - error_ms) * to_step, (saved_ms + error_ms) * to_step),
        )


def gain_or_bound(run: Run, removed: Collection[int], bound: Gain, what: str) -> tuple[Gain, str]:
    """What the replay without these events wins; where it cannot tell, the bound, and a sentence that says why.

    Where nothing of a device was recorded the host is all there is, and the bound says it.
    """
    replay = run.get(Replay)
    if replay.refusal:
        return bound, f"The gain is a bound, since the trace cannot be replayed: {replay.refusal}."
    return replay.gain_without(removed, what) if replay.schedule.calls else bound, ""


class _Removed:
    """Stretches of the host's time that are taken out, none of which touch."""

    def __init__(self, starts: Array, ends: Array) -> None:
        self._starts, self._ends = starts.tolist(), ends.tolist()
        self._before = [0, *np.cumsum(ends - starts).tolist()]

    def until(self, time_ns: int) -> int:
        """How much is taken out before that instant."""
        place = bisect_right(self._starts, time_ns)
        beyond_ns = self._ends[place - 1] - time_ns if place else 0
        return int(self._before[place]) - max(0, beyond_ns)

    def has(self, call: Call) -> bool:
        """Whether the call lies in what is taken out."""
        place = bisect_right(self._starts, call.start_ns)
        return place > 0 and bool(call.end_ns <= self._ends[place - 1])


class _Simulation:
    """Runs the calls in their order; of each kernel and call it keeps the recorded end and the new one."""

    def __init__(self, schedule: Schedule, removed: _Removed) -> None:
        self._schedule = schedule
        self._removed = removed
        self._recorded: dict[int, list[int]] = {}
        """By stream, ascending; `_ended` has the new ends in the same order."""
        self._ended: dict[int, list[int]] = {}
        self._returned: list[int] = []
        self._waits: list[Wait] = []
        """Of streams, for others; each until the next kernel of the stream that waits."""
        self._num_waits: dict[int, int] = {ANY_STREAM: 0}
        """Of streams that are not known, which then may be any; by stream, how many of them its last kernel saw."""

    def length_ns(self) -> int:
        """Until the host has ended the stretch and the device all that was launched in it."""
        schedule = self._schedule
        for stream, end_ns in schedule.earlier:
            self._run(stream, end_ns, end_ns)
        device_ns = schedule.start_ns
        for call in schedule.calls:
            end_ns, kernels_end_ns = self._called(call, self._time_after(call.after, call.start_ns))
            self._returned.append(end_ns)
            device_ns = max(device_ns, kernels_end_ns)
        ends = [(call.end_ns, place) for place, call in enumerate(schedule.calls) if call.end_ns <= schedule.end_ns]
        host_ns = self._time_after(max(ends, default=(0, -1))[1], schedule.end_ns)
        return max(host_ns, device_ns) - schedule.start_ns

    def _time_after(self, place: int, recorded_ns: int) -> int:
        """When the host comes to what it was at, at an instant of the recording, after the call at that place."""
        if place < 0:
            since_ns, now_ns = self._schedule.start_ns, self._schedule.start_ns
        else:
            since_ns, now_ns = self._schedule.calls[place].end_ns, self._returned[place]
        return now_ns + self._lasting(since_ns, recorded_ns)

    def _lasting(self, start_ns: int, end_ns: int) -> int:
        return end_ns - start_ns - (self._removed.until(end_ns) - self._removed.until(start_ns))

    def _called(self, call: Call, start_ns: int) -> tuple[int, int]:
        """When a call that begins then returns, and when the last of its kernels has ended."""
        end_ns, is_removed = start_ns + self._lasting(call.start_ns, call.end_ns), self._removed.has(call)
        if call.wait is not None and not is_removed:
            if call.wait.waiting is None:
                # What it waits for is the last that had ended when it returned.
                recorded_ns, ended_ns = self._latest(call.wait.waited, call.end_ns)
                if recorded_ns > call.start_ns:
                    end_ns = max(start_ns, ended_ns + call.end_ns - recorded_ns)
                else:
                    end_ns = max(end_ns, ended_ns)
            elif call.wait.waiting == ANY_STREAM:
                self._num_waits[ANY_STREAM] += 1
            else:
                self._waits.append(call.wait)
        kernels_end_ns = 0
        for kernel in call.kernels:
            kernel_end_ns = self._launched(kernel, start_ns if kernel.is_waited_for else end_ns)
            kernels_end_ns = max(kernels_end_ns, kernel_end_ns)
            if kernel.is_waited_for and not is_removed:
                end_ns = max(start_ns, kernel_end_ns + call.end_ns - kernel.end_ns)
        return end_ns, kernels_end_ns

    def _launched(self, kernel: Kernel, launched_ns: int) -> int:
        """When a kernel that is launched then has ended."""
        start_ns = launched_ns + kernel.latency_ns
        if self._ended.get(kernel.stream):
            start_ns = max(start_ns, self._ended[kernel.stream][-1] + kernel.gap_ns)
        for stream in self._waited_by(kernel.stream):
            start_ns = max(start_ns, self._latest(stream, kernel.start_ns)[1])
        end_ns = start_ns + kernel.end_ns - kernel.start_ns
        self._run(kernel.stream, kernel.end_ns, end_ns)
        return end_ns

    def _waited_by(self, stream: int) -> list[int]:
        """The streams that the next kernel of this one waits for, which is told once."""
        waited = [wait.waited for wait in self._waits if wait.waiting == stream]
        self._waits = [wait for wait in self._waits if wait.waiting != stream]
        if self._num_waits[ANY_STREAM] > self._num_waits.get(stream, 0):
            waited.append(ANY_STREAM)
        self._num_waits[stream] = self._num_waits[ANY_STREAM]
        return waited

    def _run(self, stream: int, recorded_ns: int, ended_ns: int) -> None:
        self._recorded.setdefault(stream, []).append(recorded_ns)
        self._ended.setdefault(stream, []).append(ended_ns)

    def _latest(self, stream: int, until_ns: int) -> tuple[int, int]:
        """The recorded and the new end of the last that had ended by then in the recording; zeros where none had."""
        found = (0, 0)
        for one in self._recorded if stream == ANY_STREAM else (stream,):
            place = bisect_right(self._recorded.get(one, []), until_ns) - 1
            if place >= 0:
                recorded_ns, ended_ns = self._recorded[one][place], self._ended[one][place]
                found = max(found[0], recorded_ns), max(found[1], ended_ns)
        return found
