"""What a replay needs of a stretch of a trace: the host's calls in their order, their kernels, and who waits for whom.

Calls are the outermost ones of the runtime, on the threads that launch kernels. Between a call and the one that ended
last before it, whatever their threads, the host works or waits for something else: that gap keeps its length.
"""

import heapq
import re
from typing import NamedTuple

import numpy as np

from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE, by_launch
from efprof.facts.time.trace_waits import ASYNCHRONOUS, COPY, SYNCHRONIZE, outermost_calls
from efprof.model import frozen_dataclass

STREAM_WAIT = re.compile(r"^(cuda|cu|hip)StreamWaitEvent")
WITH_HOST = re.compile(r"HtoD|DtoH|Host")
"""A copy between the host and a device; from or to pageable memory it blocks, whatever its name says."""
STREAM_WAIT_EVENT, NO_STREAM = "Stream Wait", -1
"""How the profiler names a stream's wait among the `cuda_sync` events, and the stream where there is none."""
ANY_STREAM = -1
"""Where the trace does not tell which stream: without `enable_cuda_sync_events` it never does."""


class Kernel(NamedTuple):
    """What runs on a stream, a lane of the trace; times as recorded."""

    stream: int
    start_ns: int
    end_ns: int
    latency_ns: int
    """From its launch to its start where nothing holds it up: from the end of the call, or its start if that waits."""
    gap_ns: int
    """From the end of what ran before it on its stream, where it was launched long before."""
    is_waited_for: bool
    """By the very call that launched it, as a copy from pageable memory is."""


class Wait(NamedTuple):
    """What a call makes wait (a stream, or itself where that is None), and for which stream."""

    waiting: int | None
    waited: int


class Call(NamedTuple):
    """One call; `after` is the place of the call that had ended last when it began, -1 where there is none."""

    start_ns: int
    end_ns: int
    after: int
    kernels: tuple[Kernel, ...]
    wait: Wait | None


@frozen_dataclass
class Schedule:
    """The calls that began between two instants; `earlier` are stream and end of kernels launched before these."""

    start_ns: int
    end_ns: int
    calls: tuple[Call, ...]
    earlier: tuple[tuple[int, int], ...]
    kernel_ns: int
    """Of the kernels that these calls launched."""
    unlaunched_ns: int
    """Of kernels between them whose launch is not in the trace."""


def schedule_of(trace: Trace, start_ns: int, end_ns: int) -> Schedule:
    """Read the calls and kernels of a stretch."""
    is_call, on_device = trace.is_of(*LAUNCHES), np.flatnonzero(trace.is_of(*ON_DEVICE))
    by_id = by_launch(trace, np.arange(len(trace)))
    launch = np.array([by_id.get(one, -1) for one in trace.id[on_device].tolist()], np.int64)
    threads = np.unique(trace.lane[launch[launch >= 0]])
    inside = np.flatnonzero(is_call & (trace.start_ns >= start_ns) & (trace.start_ns < end_ns))
    calls, outer = outermost_calls(trace, inside[np.isin(trace.lane[inside], threads)])
    place = np.array([outer.get(one, -1) for one in launch.tolist()], np.int64)
    # What runs on a stream before the first kernel that was seen to be launched there was launched before.
    starts, lanes = trace.start_ns[on_device], trace.lane[on_device]
    first: dict[int, int] = {}
    for lane, begin_ns in zip(lanes[place >= 0].tolist(), starts[place >= 0].tolist(), strict=True):
        first.setdefault(lane, begin_ns)
    of_all = min(first.values(), default=start_ns)
    is_first = starts < np.array([first.get(lane, of_all) for lane in lanes.tolist()], np.int64)
    is_inside, is_missing = (starts < end_ns) & (trace.end_ns[on_device] > start_ns), launch < 0
    is_known = ~is_missing & (trace.start_ns[launch] < start_ns)
    before = on_device[is_inside & (is_known | (is_missing & is_first))]
    return Schedule(
        start_ns=start_ns,
        end_ns=end_ns,
        calls=tuple(_calls(trace, calls, _kernels(trace, calls, on_device, place))),
        earlier=tuple(zip(trace.lane[before].tolist(), trace.end_ns[before].tolist(), strict=True)),
        kernel_ns=int(trace.duration_ns[on_device[place >= 0]].sum()),
        unlaunched_ns=int(trace.duration_ns[on_device[is_inside & is_missing & ~is_first]].sum()),
    )


def _kernels(trace: Trace, calls: Array, on_device: Array, place: Array) -> dict[int, list[Kernel]]:
    """The kernels of each call, by its place.

    A kernel that comes later than its launch and its stream explain waits for something else: that is not in its own
    latency and gap, which are at most the median of those that nothing else can have held up.
    """
    starts, ends = trace.start_ns[on_device], trace.end_ns[on_device]
    reached = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    lanes, free = trace.lane[on_device], starts.copy()  # its stream is free from the end of the one before it on
    for lane in np.unique(lanes):
        (places,) = np.nonzero(lanes == lane)
        free[places[1:]] = ends[places[:-1]]
    is_ours, call = place >= 0, calls[place] if len(calls) else place
    pairs = zip(call.tolist(), on_device.tolist(), strict=True)
    is_waited_for = is_ours & np.array([_is_waited_for(trace, *pair) for pair in pairs], bool)
    launched = np.where(is_waited_for, trace.start_ns[call], trace.end_ns[call])
    latency, gap = starts - launched, starts - free
    for kind in (False, True):
        chosen = is_ours & (is_waited_for == kind)
        typical = _typical(latency[chosen & (launched >= reached)], max(0, latency[chosen].min(initial=1 << 62)))
        latency[chosen] = np.minimum(latency[chosen], typical)
    is_queued = is_ours & (launched + latency <= free) & (free == reached)
    gap = np.minimum(gap, _typical(gap[is_queued], 0))
    found: dict[int, list[Kernel]] = {}
    columns = (place, lanes, starts, ends, latency, gap, is_waited_for)
    for number, *values in zip(*(column[is_ours].tolist() for column in columns), strict=True):
        found.setdefault(number, []).append(Kernel(*values))
    return found


def _typical(found: Array, otherwise: int) -> int:
    return int(np.median(found)) if len(found) else int(otherwise)


def _is_waited_for(trace: Trace, call: int, kernel: int) -> bool:
    """Whether a copy had ended when its call returned, and is one that this may wait for."""
    text = trace.text(call)
    if not COPY.match(text) or trace.end_ns[kernel] > trace.end_ns[call]:
        return False
    return not ASYNCHRONOUS.search(text) or bool(WITH_HOST.search(trace.text(kernel)))


def _calls(trace: Trace, calls: Array, kernels: dict[int, list[Kernel]]) -> list[Call]:
    waits = _recorded_waits(trace)
    starts, ends = trace.start_ns[calls].tolist(), trace.end_ns[calls].tolist()
    open_calls: list[tuple[int, int]] = []
    last = (0, -1)
    found = []
    for place, event in enumerate(calls.tolist()):
        while open_calls and open_calls[0][0] <= starts[place]:
            last = max(last, heapq.heappop(open_calls))
        heapq.heappush(open_calls, (ends[place], place))
        text, wait = trace.text(event), None
        waiting, waited = waits.get(int(trace.id[event]), (ANY_STREAM, ANY_STREAM))
        if SYNCHRONIZE.match(text):
            wait = Wait(None, waited)
        elif STREAM_WAIT.match(text):
            wait = Wait(waiting, waited)
        found.append(Call(starts[place], ends[place], last[1], tuple(kernels.get(place, ())), wait))
    return found


def _recorded_waits(trace: Trace) -> dict[int, tuple[int, int]]:
    """By the correlation of the call, the stream that waits and the one that is waited for, where that is recorded."""
    lanes = {lane: code for code, lane in enumerate(trace.lanes) if lane[1] != NO_STREAM}
    waited_stream, found = trace.argument("waited_stream"), {}
    for event in np.flatnonzero(trace.is_of("cuda_sync")).tolist():
        device, stream = trace.lanes[trace.lane[event]]
        is_told = waited_stream[event] >= 0 or STREAM_WAIT_EVENT in trace.text(event)
        waited = int(waited_stream[event]) if is_told else stream
        found[int(trace.id[event])] = lanes.get((device, stream), ANY_STREAM), lanes.get((device, waited), ANY_STREAM)
    return found
