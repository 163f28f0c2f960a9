"""What a device does through a stretch of a trace: busy, computing, copying, communicating, idle and why."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.time.call_paths import ON_DEVICE, by_launch
from efprof.facts.time.path_tree import CallPath
from efprof.model import frozen_dataclass

DeviceKind = Literal["compute", "copy", "communication"]
Cause = Literal["the host had launched nothing", "launched, not begun", "not known"]

Spans = tuple[Array, Array]
"""Where stretches begin, and where each of them ends."""

COMMUNICATION = re.compile(r"nccl(Dev)?Kernel|^nccl|rccl|multimem_all_|nvshmem|deep_ep::", re.IGNORECASE)
"""Collectives of NCCL under its old and its new name, of RCCL, and what talks over NVLink by itself."""
KINDS = {
    "all-reduce": re.compile(r"all_?reduce", re.I),
    "reduce-scatter": re.compile(r"reduce_?scatter", re.I),
    "all-gather": re.compile(r"all_?gather", re.I),
    "all-to-all": re.compile(r"all_?to_?all|sendrecv|deep_ep", re.I),
    "broadcast": re.compile(r"broadcast", re.I),
    "reduce": re.compile(r"reduce", re.I),
    "send and receive": re.compile(r"send|recv", re.I),
}
"""Names of labels of c10d and of kernels of NCCL, old and new, the longer ones first."""
LABEL = re.compile(r"(nccl|rccl|gloo|c10d):")
COPY = re.compile(r"^Mem(cpy|set)\b|^Copy", re.IGNORECASE)
"""By the whole word: kernels that a compiler has named after a copy compute."""
COLOURS: dict[Cause, str] = {
    "the host had launched nothing": "alert",
    "launched, not begun": "muted",
    "not known": "other",
}


@frozen_dataclass
class IdleGap:
    """A stretch in which no stream had anything to do."""

    start_ns: int
    end_ns: int
    cause: Cause
    next_event: int
    """What the device does after it; -1 at the end of the stretch."""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@frozen_dataclass
class DeviceUse:
    """Nanoseconds of a stretch: `busy` by any, the kinds by at least one stream, `exposed` communication alone."""

    span_ns: int
    busy_ns: int
    kind_ns: dict[str, int]
    exposed_ns: int
    idle_ns: Counter[Cause]


def kind_of(trace: Trace, event: int) -> DeviceKind:
    """What sort of work an event on the device is."""
    return _kind_of_name(trace.text(event), trace.texts[int(trace.category[event])])


def kind_of_collective(trace: Trace, event: int, path: CallPath | None) -> str:
    """By the `collective` argument, by what torch calls it, or by the kernel, which may be one of several for it."""
    labels = [part.text for part in reversed(path.parts()) if LABEL.match(part.text)] if path else []
    for text in [trace.argument_text("collective", event), *labels, trace.text(event)]:
        kind = next((kind for kind, pattern in KINDS.items() if pattern.search(text)), None)
        if kind is not None:
            return kind
    return trace.text(event)[:40]


@lru_cache(maxsize=4096)
def _kind_of_name(text: str, category: str) -> DeviceKind:
    if COMMUNICATION.search(text):
        return "communication"
    is_copy = category.lower() in ("gpu_memcpy", "gpu_memset", "memcpy", "memset") or COPY.match(text)
    return "copy" if is_copy else "compute"


def device_use(trace: Trace, start_ns: int, end_ns: int) -> DeviceUse | None:
    """How the devices were used between two instants; None where nothing of a device was recorded."""
    events = on_device_between(trace, start_ns, end_ns)
    if not len(events):
        return None
    kinds = np.array([kind_of(trace, event) for event in events.tolist()])

    def busy_ns(chosen: Array) -> int:
        return overlap_ns(union(trace.start_ns[chosen], trace.end_ns[chosen]), start_ns, end_ns)

    idle = Counter[Cause]()
    for gap in idle_gaps(trace, start_ns, end_ns):
        idle[gap.cause] += gap.length_ns
    return DeviceUse(
        span_ns=end_ns - start_ns,
        busy_ns=busy_ns(events),
        kind_ns={kind: busy_ns(events[kinds == kind]) for kind in get_args(DeviceKind)},
        exposed_ns=busy_ns(events) - busy_ns(events[kinds != "communication"]),
        idle_ns=idle,
    )


def busy_by_device(trace: Trace, start_ns: int, end_ns: int) -> list[float]:
    """The share of the time between two instants in which each device is busy."""
    events = on_device_between(trace, start_ns, end_ns)
    devices = np.array([str(trace.lanes[lane][0]) for lane in trace.lane[events].tolist()])
    each = (events[devices == device] for device in np.unique(devices))
    spans = (union(trace.start_ns[one], trace.end_ns[one]) for one in each)
    return [overlap_ns(one, start_ns, end_ns) / max(1, end_ns - start_ns) for one in spans]


def idle_gaps(trace: Trace, start_ns: int, end_ns: int) -> list[IdleGap]:
    """Where no stream has anything to do, in order, and whether the host had launched what came next."""
    events = on_device_between(trace, start_ns, end_ns)
    launched = by_launch(trace, trace.end_ns)
    gaps, free_ns = list[IdleGap](), start_ns
    columns = (events, trace.id[events], trace.start_ns[events], trace.end_ns[events])
    for event, id_, begin_ns, last_ns in zip(*(column.tolist() for column in columns), strict=True):
        if begin_ns > free_ns:
            gaps += _gap(free_ns, min(begin_ns, end_ns), launched.get(id_), event)
        free_ns = max(free_ns, last_ns)
    if free_ns < end_ns:
        gaps += _gap(free_ns, end_ns, end_ns if launched else None, -1)
    return gaps


def _gap(start_ns: int, end_ns: int, launch_ns: int | None, event: int) -> list[IdleGap]:
    """Until the launch the host is waited for, after it the device's own queue."""
    if launch_ns is None:
        return [IdleGap(start_ns=start_ns, end_ns=end_ns, cause="not known", next_event=event)]
    turn_ns = min(max(launch_ns, start_ns), end_ns)
    parts: list[tuple[int, int, Cause]] = [
        (start_ns, turn_ns, "the host had launched nothing"),
        (turn_ns, end_ns, "launched, not begun"),
    ]
    return [
        IdleGap(start_ns=start, end_ns=end, cause=cause, next_event=event) for start, end, cause in parts if end > start
    ]


def union(starts: Array, ends: Array) -> Spans:
    """The intervals put together where they touch: where each stretch begins and ends."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    begins = np.flatnonzero(np.concatenate([[True], starts[1:] > reached[:-1]]))
    return starts[begins], reached[np.concatenate([begins[1:] - 1, [len(starts) - 1]])]


def spans_of(stretches: Iterable[tuple[int, int]]) -> Spans:
    """The same of pairs of begin and end."""
    starts, ends = np.array([*stretches], np.int64).reshape(-1, 2).T
    return union(starts, ends)


def overlap_ns(spans: Spans, start_ns: int, end_ns: int) -> int:
    """How much of the time between two instants stretches cover, which are in order and apart."""
    first = int(np.searchsorted(spans[1], start_ns, side="right"))
    last = int(np.searchsorted(spans[0], end_ns, side="left"))
    starts, ends = spans[0][first:last], spans[1][first:last]
    return int((np.minimum(ends, end_ns) - np.maximum(starts, start_ns)).sum())


def on_device_between(trace: Trace, start_ns: int, end_ns: int) -> Array:
    """The places of what the device does between two instants, in order of its start."""
    return np.flatnonzero(trace.is_of(*ON_DEVICE) & trace.overlaps(start_ns, end_ns))
