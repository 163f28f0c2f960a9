"""Why a device waits for the host: each stretch with nothing launched, by what the thread did that launches next."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal, Self, get_args

import numpy as np

from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.call_paths import HOST, LAUNCHES, ON_DEVICE, OPERATORS, STEP_LABEL, CallPaths, by_launch
from efprof.facts.time.device_lanes import Spans, overlap_ns, spans_of, union
from efprof.facts.time.launching_lines import launching_line
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_waits import waiting_calls
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import SourceLine, frozen_dataclass

IdleKind = Literal["memory", "first calls", "loader", "wait", "operators", "Python", "launches", "nothing recorded"]
"""What the host does: asks its driver for memory, calls something for the first time, waits for a batch or the device,
runs operators that launch nothing, runs Python, launches, or nothing that the trace has."""

MAX_GAP_NS = 1_000_000
"""Longer, the host did something else than launching. In 22 real traces the gaps between launches are below 0.5 ms, and
what lies above 1 ms is loading a library, compiling, or Python that launches nothing."""
FIRST_NS = 1_000_000
"""A call of the driver takes microseconds; the first one loads a module, or chooses an algorithm."""
FAR_LONGER, MAX_FIRST = 20.0, 5
"""Than the median of the same name; a call that is so long more often is no first one, unless it launches a kernel for
the first time: each loads its module then."""
MAX_SHARE = 0.5
"""Of the steps, in which such calls of a name may come."""
ALONE_NS = 100_000_000
"""A call whose name comes once."""
WAITS = re.compile(r"Synchronize|Memcpy")
MEMORY = re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc)|^cuMem(Alloc|Free|Create|Release|Map|Unmap|SetAccess)")
EMPTY = re.compile(r"^aten::empty")
"""It may be a tensor of the device, whose memory the allocator has."""
RUN_BACKWARD = re.compile(r"run_backward")
"""In which a thread waits for the autograd engine's."""
BUILT_IN = "<built-in "
MAIN_SHARE = 0.8
"""Of a kind's time: the lowest function that has so much of it is where it goes."""
MAX_PARTS = 3


@frozen_dataclass
class IdleCause:
    """Nanoseconds that the device waits for the host in one way, in all steps.

    `function` is the lowest that most of it lies in, the user's or a library's, empty where none is recorded; `parts`
    are what takes most of it, by name.
    """

    kind: IdleKind
    spent_ns: int
    function: str
    parts: tuple[tuple[str, int], ...]
    blame: SourceLine | None


@frozen_dataclass
class IdleCauses:
    """The largest first."""

    window: TraceWindow
    causes: tuple[IdleCause, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From the window that tells where time goes; raises NotRecorded where there is none."""
        window = run.get(TimeUse).window
        spent = by_kind(window, run.get(FirstCalls).events) if window.device else {}
        causes = [_cause(kind, spent[kind], window, run.get(Sources)) for kind in get_args(IdleKind) if kind in spent]
        return cls(window=window, causes=tuple(sorted(causes, key=lambda cause: -cause.spent_ns)))

    def of(self, kind: IdleKind) -> IdleCause | None:
        return next((cause for cause in self.causes if cause.kind == kind), None)

    def share(self, cause: IdleCause) -> float:
        """Of the step as it was recorded."""
        return cause.spent_ns / 1e6 / self.window.num_steps / self.window.step_ms


Spent = Counter[int]
"""Idle nanoseconds by the event that the thread was in; -1 is none."""


def by_kind(window: TraceWindow, first: frozenset[int]) -> dict[IdleKind, Spent]:
    """What the host does in each stretch in which the device waits for it, event by event; `first` are first calls."""
    trace, found = window.trace, defaultdict[IdleKind, Spent](Counter)
    lane_of = by_launch(trace, trace.lane)
    late = defaultdict[tuple[int, bool, IdleKind], list[tuple[int, int]]](list)
    waits = spans_of(map(trace.span, waiting_calls(trace).tolist()))
    fetches = spans_of((start, end) for start, end, stage, _ in window.paths.stages if stage == "data")
    for gap in window.gaps:
        if gap.cause == "the host had launched nothing":
            lane = lane_of.get(int(trace.id[gap.next_event]), -1) if gap.next_event >= 0 else -1
            # Where the device ran dry in a wait of the host, what is launched first after it is late for that.
            waits_ns, fetch_ns = (overlap_ns(spans, gap.start_ns, gap.end_ns) for spans in (waits, fetches))
            launches: IdleKind = "wait" if waits_ns else "loader" if fetch_ns else "launches"
            late[lane, gap.length_ns > MAX_GAP_NS, launches].append((gap.start_ns, gap.end_ns))
    threads = _Threads(window, first)
    for (lane, is_long, launches), gaps in late.items():
        for event, spent_ns in threads.spent(spans_of(gaps), lane).items():
            kind = threads.kind_of(event, is_long=is_long)
            found[launches if kind == "launches" else kind][event] += spent_ns
    return {kind: spent for kind, spent in found.items() if spent.total() > 0}


@frozen_dataclass
class _Thread:
    """The events of one, with the place of the event `around` each, or -1; and when it is in any but `run_backward`."""

    events: Array
    starts: Array
    ends: Array
    around: Array
    is_waiting: Array
    busy: Spans

    @classmethod
    def of(cls, trace: Trace, events: Array) -> Self:
        starts = trace.start_ns[events]
        outer_of, last = _nested(starts, trace.end_ns[events])
        is_waiting = trace.matches(RUN_BACKWARD)[events]
        # Nothing of its own goes on in `run_backward`, but for what is called from within.
        outermost, inner = outer_of < 0, (outer_of >= 0) & is_waiting[outer_of] & ~is_waiting
        apart = _without(union(starts[outermost], last[outermost]), union(starts[is_waiting], last[is_waiting]))
        busy = union(*(np.concatenate(pair) for pair in zip(apart, (starts[inner], last[inner]), strict=True)))
        return cls(events=events, starts=starts, ends=last, around=outer_of, is_waiting=is_waiting, busy=busy)

    def spent(self, idle: Spans) -> tuple[Spent, Spans]:
        """What each event has for itself of these stretches; and the rest: it was in none, or waited for another."""
        within = _idle_until(idle, self.ends) - _idle_until(idle, self.starts)
        own, inner = within.copy(), self.around >= 0
        np.subtract.at(own, self.around[inner], within[inner])
        is_its = (own > 0) & ~self.is_waiting
        found = Counter(dict(zip(self.events[is_its].tolist(), own[is_its].tolist(), strict=True)))
        return found, _without(idle, self.busy)


class _Threads:
    """What each thread of the host did, event by event."""

    def __init__(self, window: TraceWindow, first: frozenset[int]) -> None:
        trace, self._paths, self._first = window.trace, window.paths, first
        self._trace = trace
        host = np.flatnonzero(trace.is_of(*HOST) & trace.overlaps(*window.bounds) & ~trace.matches(STEP_LABEL))
        lanes = trace.lane[host]
        self._threads = {lane: _Thread.of(trace, host[lanes == lane]) for lane in np.unique(lanes).tolist()}
        self._is_operator, self._is_call = trace.is_of(*OPERATORS), trace.is_of(*LAUNCHES)
        self._waits = set(waiting_calls(trace).tolist())
        self._launching = set[int]()
        for launch in host[self._is_call[host] & (trace.id[host] >= 0)].tolist():
            event: int | None = launch
            while event is not None and event not in self._launching:
                self._launching.add(event)
                event = self._paths.outer.get(event)

    def spent(self, idle: Spans, lane: int) -> Spent:
        """Of these stretches on that thread; what it waits for another one, or nothing tells, is the others'."""
        found, rest = Counter[int](), idle
        for one in (lane, *sorted(self._paths.threads - {lane})):
            if one in self._threads:
                spent, rest = self._threads[one].spent(rest)
                found += spent
        found[-1] += int((rest[1] - rest[0]).sum())
        return found

    def kind_of(self, event: int, *, is_long: bool) -> IdleKind:
        if event < 0:
            return "nothing recorded" if is_long else "launches"
        if event in self._first:
            return "first calls"
        if self._is_call[event]:
            is_memory = MEMORY.match(self._trace.text(event))
            return "memory" if is_memory else "wait" if event in self._waits else "launches"
        if self._paths.of_event[event].stage == "data":
            return "loader"
        is_launch = event in self._launching or EMPTY.match(self._trace.text(event))
        if not is_long or (self._is_operator[event] and is_launch):
            return "launches"
        return "operators" if self._is_operator[event] else "Python"


def _nested(starts: Array, ends: Array) -> tuple[Array, Array]:
    """The place of the event around each, or -1, and where it ends: with what opened it, which a label may outlast."""
    around, last, begins = [-1] * len(starts), ends.tolist(), starts.tolist()
    stack: list[int] = []
    for number in np.lexsort((-ends, starts)).tolist():
        while stack and last[stack[-1]] <= begins[number]:
            stack.pop()
        if stack:
            around[number] = stack[-1]
            last[number] = min(last[number], last[stack[-1]])
        stack.append(number)
    return np.array(around, np.int64), np.array(last, np.int64)


def _idle_until(idle: Spans, times_ns: Array) -> Array:
    """How much of the stretches, which are apart and in order, lies before each instant."""
    starts, ends = idle
    before = np.concatenate([[0], np.cumsum(ends - starts)])
    place = np.searchsorted(starts, times_ns, side="right")
    last = np.maximum(place - 1, 0)
    beyond = np.maximum(0, ends[last] - times_ns) if len(ends) else np.zeros(len(times_ns), np.int64)
    found: Array = before[place] - np.where(place > 0, beyond, 0)
    return found


def _without(idle: Spans, busy: Spans) -> Spans:
    """The parts of the one that lie in none of the other."""
    points = np.unique(np.concatenate([*idle, *busy]))
    starts, ends = points[:-1], points[1:]
    kept = _covers(idle, starts) & ~_covers(busy, starts)
    return union(starts[kept], ends[kept])


def _covers(spans: Spans, times_ns: Array) -> Array:
    found: Array = np.searchsorted(spans[0], times_ns, side="right") > np.searchsorted(spans[1], times_ns, side="right")
    return found


def _cause(kind: IdleKind, spent: Spent, window: TraceWindow, sources: Sources) -> IdleCause:
    trace, paths = window.trace, window.paths
    weights = [(paths.of_event[event], float(ns)) for event, ns in spent.items() if event in paths.of_event]
    parts = Counter[str]()
    for event, spent_ns in spent.items():
        parts[_name(trace, paths, event)] += spent_ns
    return IdleCause(
        kind=kind,
        spent_ns=spent.total(),
        function=_lowest(spent, window),
        parts=tuple(parts.most_common(MAX_PARTS)),
        blame=launching_line(weights, sources),
    )


def _name(trace: Trace, paths: CallPaths, event: int) -> str:
    """Of a call, an operator, or the function around what is built in."""
    while event >= 0 and trace.text(event).startswith(BUILT_IN):
        event = paths.outer.get(event, -1)
    return trace.text(event) if event >= 0 else ""


def _lowest(spent: Spent, window: TraceWindow) -> str:
    trace, paths = window.trace, window.paths
    inclusive, depth = Counter[str](), dict[str, int]()
    for event, spent_ns in spent.items():
        names = [*_functions_around(trace, paths, event)]
        for level, name in enumerate(reversed(names)):
            depth[name] = max(depth.get(name, 0), level)
        inclusive.update(dict.fromkeys(names, spent_ns))
    main = [name for name, spent_ns in inclusive.items() if spent_ns >= MAIN_SHARE * spent.total()]
    return max(main, key=lambda name: (depth[name], name), default="")


def _functions_around(trace: Trace, paths: CallPaths, event: int) -> Iterable[str]:
    """Functions of Python and operators, the innermost first."""
    found: int | None = event
    while found is not None and found >= 0:
        text = trace.text(found)
        category = trace.texts[int(trace.category[found])]
        if category in OPERATORS or (category == "python_function" and not text.startswith((BUILT_IN, "nn.Module: "))):
            yield text
        found = paths.outer.get(found)


@frozen_dataclass
class FirstCalls:
    """Calls of the driver that take long once: modules are loaded, algorithms chosen, memory asked for.

    Nanoseconds by name, the costliest first, of all that was traced, warm-up included; what several threads call at
    once counts once.
    """

    events: frozenset[int]
    spent_ns: tuple[tuple[str, int], ...]
    total_ns: int
    traced_ns: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Of a trace; raises NotRecorded where there is none."""
        window = run.get(TimeUse).window
        trace, start_ns, end_ns = window.trace, (*window.warm_up, *window.steps)[0][0], window.bounds[1]
        calls = np.flatnonzero(trace.is_of(*LAUNCHES) & trace.overlaps(start_ns, end_ns))
        names, first, spent = trace.name_code[calls], list[int](), Counter[str]()
        first_launches = _first_launches(trace, calls)
        starts = np.array([start for start, _ in (*window.warm_up, *window.steps)])
        for name in np.unique(names).tolist():
            if not WAITS.search(trace.texts[name]):
                long = _first_of(calls[names == name], trace.duration_ns, first_launches)
                steps = np.unique(np.searchsorted(starts, trace.start_ns[long], side="right"))
                if len(steps) > max(1, MAX_SHARE * len(starts)):  # what comes in most steps is none
                    long = long[np.isin(long, first_launches)]
                first += long.tolist()
                spent[trace.texts[name]] += _spent_ns(trace, long)
        total_ns = _spent_ns(trace, np.array(first, np.int64))
        ordered = tuple(pair for pair in spent.most_common() if pair[1])
        return cls(events=frozenset(first), spent_ns=ordered, total_ns=total_ns, traced_ns=end_ns - start_ns)


def _spent_ns(trace: Trace, events: Array) -> int:
    starts, ends = union(trace.start_ns[events], trace.end_ns[events])
    return int((ends - starts).sum())


def _first_launches(trace: Trace, calls: Array) -> Array:
    """Those of these calls that launch a kernel of a name that none before has launched."""
    on_device = np.flatnonzero(trace.is_of(*ON_DEVICE) & (trace.id >= 0))
    kernel_of = dict(zip(trace.id[on_device].tolist(), trace.name_code[on_device].tolist(), strict=True))
    found = dict[int, int]()
    for call in calls[np.argsort(trace.start_ns[calls], kind="stable")].tolist():
        if (kernel := kernel_of.get(int(trace.id[call]))) is not None:
            found.setdefault(kernel, call)
    return np.array([*found.values()], np.int64)


def _first_of(calls: Array, duration_ns: Array, first_launches: Array) -> Array:
    """The few that are far longer than the others of their name, or that launch something for the first time."""
    lengths = duration_ns[calls]
    median_ns = float(np.sort(lengths)[(len(lengths) - 1) // 2])  # the lower one: of two calls one may be the first
    least_ns = max(FIRST_NS, FAR_LONGER * median_ns) if len(calls) > 1 else ALONE_NS
    long: Array = calls[lengths > least_ns]
    return long if len(long) <= MAX_FIRST else long[np.isin(long, first_launches)]
