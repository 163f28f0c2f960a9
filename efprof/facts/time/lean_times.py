"""A full window's events at the times of the lean window after it.

A full window (stacks, shapes, memory) tells the lines, and makes many short calls far slower than a few long ones; a
lean one bends time less and tells no line. On each thread both have the same operators and launches in the same order,
step by step. Each of them takes the time of its counterpart; so do labels and kernels. What lies between two of them,
which is Python, is stretched or squeezed into the time between their counterparts, all of it alike.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Final

import numpy as np

from efprof.artifacts.trace.columns import ABSENT, Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE, OPERATORS, outermost
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.model import NotRecorded, UnreadableInput
from efprof.units import format_share

MIN_KNOWN: Final = 0.95
"""Of the time of a lean window's operators, and of its kernels: with less, the two windows did not do the same."""
MAX_COMPARED: Final = 2_000
"""Operators between the first and the last difference of two steps; to compare them takes their square."""
EVER: Final = (0, 2**63 - 1)
FAR_NS: Final = 10**13
"""Before the first and after the last known instant, time runs as it was recorded."""

_PairList = list[tuple[int, int]]
_Clock = Callable[[Array], Array]


def timed_window(run: Run) -> tuple[TraceWindow, str]:
    """A full window at the times of the lean one after it; else the last window, and why, if a lean one was recorded.

    Of several the lean one that comes nearest to the median step, and did the same as the full one: others may have
    waited for the processor. Raises NotRecorded where no window holds a step, UnreadableInput.
    """
    traces = run.get(TraceWindows)
    if not traces.windows:
        raise NotRecorded("no trace holds a step; record the run without '--windows none'.")
    pairs, reasons = [(one, traces.lean[one.name]) for one in traces.windows if one.name in traces.lean], []
    for full, lean in sorted(pairs, key=lambda pair: abs(pair[1].step_ms - (pair[1].steady_ms or 0.0))):
        try:
            retimed, known = at_times_of(full, lean)
        except UnreadableInput as error:
            reasons.append(str(error))
            continue
        if known >= MIN_KNOWN:
            return retimed, ""
        found = f"Only {format_share(known)} of what {lean.name} spent in operators is found again in {full.name}"
        reasons.append(f"{found}: its times, which the profiler bent less, are not used.")
    return traces.windows[-1], next(iter(reasons), "")


def at_times_of(full: TraceWindow, lean: TraceWindow) -> tuple[TraceWindow, float]:
    """A full window's events at a lean one's times, and how much of its time in operators and kernels was found again.

    With less than MIN_KNOWN it is the full window as it was.
    """
    trace, lean_trace = full.trace, lean.trace
    host, device = _Pairs(trace, lean_trace), _Pairs(trace, lean_trace)
    for lean_lane, name in enumerate(lean_trace.lanes):
        lane = trace.lanes.index(name) if name in trace.lanes else ABSENT
        for step, lean_step in zip(full.steps, lean.steps, strict=False):
            host.add(lane, _calls(trace, lane, step), _calls(lean_trace, lean_lane, lean_step))
            labels = _events(trace, lane, step, "user_annotation")
            host.add_all(lane, labels, _events(lean_trace, lean_lane, lean_step, "user_annotation"))
        device.add(
            lane,
            [*_events(trace, lane, EVER, *ON_DEVICE)[:, None]],
            [*_events(lean_trace, lean_lane, EVER, *ON_DEVICE)[:, None]],
        )
    known = min(host.known, device.known)
    return (_retimed(full, lean, host, device) if known >= MIN_KNOWN else full), known


class _Pairs:
    """Events of the full window, each with its counterpart in the lean one, by the full one's lanes."""

    def __init__(self, full: Trace, lean: Trace) -> None:
        self.by_lane: dict[int, _PairList] = defaultdict(list)
        self._full, self._lean = full, lean
        self._found_ns = self._all_ns = 0

    @property
    def known(self) -> float:
        """Of the lean window's time in such calls, the share that has a counterpart."""
        return self._found_ns / self._all_ns if self._all_ns else 1.0

    def add(self, lane: int, calls: list[Array], lean_calls: list[Array]) -> None:
        """Pair calls by their order and name; what is inside two of them too, where that is all the same."""
        self._all_ns += sum(int(self._lean.duration_ns[call[0]]) for call in lean_calls)
        names = [self._full.text(call[0]) for call in calls]
        for one, other in _alike(names, [self._lean.text(call[0]) for call in lean_calls]):
            call, lean_call = calls[one], lean_calls[other]
            self._found_ns += int(self._lean.duration_ns[lean_call[0]])
            if not self.add_all(lane, call, lean_call):
                self.by_lane[lane].append((int(call[0]), int(lean_call[0])))

    def add_all(self, lane: int, events: Array, lean_events: Array) -> bool:
        """Pair all of them, where they have the same names."""
        is_alike = [*map(self._full.text, events)] == [*map(self._lean.text, lean_events)]
        if is_alike:
            self.by_lane[lane] += zip(events.tolist(), lean_events.tolist(), strict=True)
        return is_alike


def _retimed(full: TraceWindow, lean: TraceWindow, host: _Pairs, device: _Pairs) -> TraceWindow:
    """A thread without calls goes by the one that has most."""
    trace = full.trace
    starts, ends = trace.start_ns.copy(), trace.end_ns.copy()
    most = max(host.by_lane.values(), key=len, default=[])
    for lane in range(len(trace.lanes)):
        here, kernels = trace.lane == lane, device.by_lane[lane]
        clock = _clock(full, lean, kernels or host.by_lane[lane] or most, follows_steps=not kernels)
        starts[here], ends[here] = clock(starts[here]), clock(ends[here])
    num_steps = len(full.steps)  # a window of one step, less its fetch, has fewer than the other
    name, retimed = f"{lean.name}, with the lines of {full.name}", trace.moved_to(starts, ends)
    return replace(
        full, name=name, read=lambda: retimed, steps=lean.steps[:num_steps], numbers=lean.numbers[:num_steps]
    )


def _clock(full: TraceWindow, lean: TraceWindow, pairs: _PairList, *, follows_steps: bool) -> _Clock:
    """What tells the lean window's time of an instant of the full one; it never runs backwards.

    A device may do a step's work after its end: there the steps themselves tell nothing.
    """
    begins_ns, num_steps = (full.steps[0][0], lean.steps[0][0]), min(len(full.steps), len(lean.steps))
    known = []
    for window, events, begin_ns in zip(
        (full, lean), np.array(pairs, np.int64).reshape(-1, 2).T, begins_ns, strict=True
    ):
        steps = np.ravel(window.steps[:num_steps]) if follows_steps else np.empty(0, np.int64)
        known.append(np.concatenate([window.trace.start_ns[events], window.trace.end_ns[events], steps]) - begin_ns)
    order = np.lexsort(known[::-1])
    full_ns, lean_ns = (
        np.concatenate([[ns[0] - FAR_NS], ns, [ns[-1] + FAR_NS]])
        for ns in (known[0][order], np.maximum.accumulate(known[1][order]))
    )
    return lambda at_ns: np.rint(np.interp(at_ns - begins_ns[0], full_ns, lean_ns)).astype(np.int64) + begins_ns[1]


def _calls(trace: Trace, lane: int, step: tuple[int, int]) -> list[Array]:
    """The outermost operators and launches of a step on a lane, each with those inside it."""
    events = _events(trace, lane, step, *OPERATORS, *LAUNCHES)
    begins = np.flatnonzero(outermost(trace.start_ns[events], trace.end_ns[events]))
    return np.split(events, begins[1:]) if len(events) else []


def _events(trace: Trace, lane: int, step: tuple[int, int], *categories: str) -> Array:
    """Those that begin in a step."""
    inside = (trace.start_ns >= step[0]) & (trace.start_ns < step[1])
    found: Array = np.flatnonzero((trace.lane == lane) & inside & trace.is_of(*categories))
    return found


def _alike(names: list[str], lean_names: list[str]) -> Iterator[tuple[int, int]]:
    """The places of the same names in the same order."""
    num, num_lean, least = len(names), len(lean_names), min(len(names), len(lean_names))
    first = next((place for place in range(least) if names[place] != lean_names[place]), least)
    last = next((place for place in range(least - first) if names[~place] != lean_names[~place]), least - first)
    yield from ((place, place) for place in range(first))
    inside, lean_inside = names[first : num - last], lean_names[first : num_lean - last]
    if max(len(inside), len(lean_inside)) <= MAX_COMPARED:
        for one, other, size in SequenceMatcher(None, inside, lean_inside, autojunk=False).get_matching_blocks():
            yield from ((first + one + place, first + other + place) for place in range(size))
    yield from ((num - place, num_lean - place) for place in range(last, 0, -1))
