"""A full window's events at the times of the lean window after it.

A full window (stacks, shapes, memory) tells the lines, and makes many short calls far slower than a few long ones; a
lean one bends time less and tells no line. On each thread both have the same operators, launches and labels in the same
order, step by step, and on each stream the same kernels. Each of them takes the time of its counterpart. What lies
between two of them, which is Python, is stretched or squeezed into the time between their counterparts, all of it
alike.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import takewhile
from operator import eq

import numpy as np

from efprof.artifacts.trace.columns import ABSENT, Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE, OPERATORS, outermost
from efprof.facts.time.trace_windows import Span, TraceWindow, TraceWindows
from efprof.model import NotRecorded, UnreadableInput

MIN_KNOWN = 0.95
"""Of the time of a lean window's calls, and of its kernels: with less, the two windows did not do the same."""
MAX_COMPARED = 2_000
"""Calls between the first and the last difference of two steps; to compare them takes their square."""
EVER = (0, 2**63 - 1)
FAR_NS = 10**13
"""Before the first and after the last known instant, time runs as it was recorded."""

_Clock = Callable[[Array], Array]


def timed_window(run: Run) -> TraceWindow:
    """A full window at the times of the lean one after it; else the last window as it was.

    Of several the lean one that comes nearest to the median step, and did the same as the full one: others may have
    waited for the processor. Raises NotRecorded where no window holds a step, UnreadableInput.
    """
    traces = run.get(TraceWindows)
    if not traces.windows:
        raise NotRecorded("no trace holds a step; record the run with '--trace-steps 2:4'.")
    pairs = [(one, traces.lean[one.name]) for one in traces.windows if one.name in traces.lean]
    for full, lean in sorted(pairs, key=lambda pair: abs(pair[1].step_ms - (pair[1].steady_ms or 0.0))):
        with suppress(UnreadableInput):
            if retimed := at_times_of(full, lean):
                return retimed
    return traces.windows[-1]


def at_times_of(full: TraceWindow, lean: TraceWindow) -> TraceWindow | None:
    """A full window's events at a lean one's times; None where they did not do the same."""
    steps = [*zip(full.steps, lean.steps, strict=False)]  # a window of one step, less its fetch, has fewer
    host, known = _pairs(full.trace, lean.trace, (*OPERATORS, *LAUNCHES), steps)
    labels, _ = _pairs(full.trace, lean.trace, ("user_annotation",), steps)
    host |= {lane: np.concatenate([host.get(lane, pairs[:0]), pairs]) for lane, pairs in labels.items()}
    device, known_on_device = _pairs(full.trace, lean.trace, ON_DEVICE, [(EVER, EVER)])
    if min(known, known_on_device) < MIN_KNOWN:
        return None
    trace, num_steps = full.trace, len(full.steps)
    starts, ends = trace.start_ns.copy(), trace.end_ns.copy()
    most = max(host.values(), key=len, default=np.empty((0, 2), np.int64))  # by it goes a thread without calls
    for lane in range(len(trace.lanes)):
        here, pairs = trace.lane == lane, device.get(lane, host.get(lane, most))
        # A device may do a step's work after its end: there the steps themselves tell nothing.
        clock = _clock(full, lean, pairs, 0 if lane in device else num_steps)
        starts[here], ends[here] = clock(starts[here]), clock(ends[here])
    name, retimed = f"{lean.name}, with the lines of {full.name}", trace.moved_to(starts, ends)
    return replace(
        full, name=name, read=lambda: retimed, steps=lean.steps[:num_steps], numbers=lean.numbers[:num_steps]
    )


def _pairs(
    full: Trace, lean: Trace, categories: Sequence[str], spans: Sequence[tuple[Span, Span]]
) -> tuple[dict[int, Array], float]:
    """By the full one's lanes, places of events in both, [number, 2]; and the share of the lean one's time in them."""
    found = defaultdict[int, list[Array]](list)
    known_ns = all_ns = 0
    for lean_lane, name in enumerate(lean.lanes):
        lane = full.lanes.index(name) if name in full.lanes else ABSENT
        for span, lean_span in spans:
            calls, lean_calls = _calls(full, lane, span, categories), _calls(lean, lean_lane, lean_span, categories)
            names, lean_names = [full.text(call[0]) for call in calls], [lean.text(call[0]) for call in lean_calls]
            for one, other in _alike(names, lean_names):
                call, lean_call = calls[one], lean_calls[other]
                if [*map(full.text, call)] != [*map(lean.text, lean_call)]:
                    call, lean_call = call[:1], lean_call[:1]
                found[lane].append(np.column_stack([call, lean_call]))
                known_ns += int(lean.duration_ns[lean_call[0]])
            all_ns += sum(int(lean.duration_ns[call[0]]) for call in lean_calls)
    return {lane: np.concatenate(parts) for lane, parts in found.items()}, known_ns / all_ns if all_ns else 1.0


def _calls(trace: Trace, lane: int, span: Span, categories: Sequence[str]) -> list[Array]:
    """The outermost of a lane that begin in a stretch, each with those inside it."""
    inside = (trace.start_ns >= span[0]) & (trace.start_ns < span[1])
    events = np.flatnonzero((trace.lane == lane) & inside & trace.is_of(*categories))
    return np.split(events, np.flatnonzero(outermost(trace, events))[1:]) if len(events) else []


def _alike(names: list[str], lean_names: list[str]) -> Iterator[tuple[int, int]]:
    """The places of the same names in the same order."""
    first = _num_alike(names, lean_names)
    rest, lean_rest = names[first:], lean_names[first:]
    last = _num_alike(rest[::-1], lean_rest[::-1])
    inside, lean_inside = rest[: len(rest) - last], lean_rest[: len(lean_rest) - last]
    yield from ((place, place) for place in range(first))
    if max(len(inside), len(lean_inside)) <= MAX_COMPARED:
        for one, other, size in SequenceMatcher(None, inside, lean_inside, autojunk=False).get_matching_blocks():
            yield from ((first + one + place, first + other + place) for place in range(size))
    yield from ((len(names) - place, len(lean_names) - place) for place in range(last, 0, -1))


def _num_alike(names: list[str], lean_names: list[str]) -> int:
    """How many of the first ones are the same."""
    return sum(takewhile(bool, map(eq, names, lean_names)))


def _clock(full: TraceWindow, lean: TraceWindow, pairs: Array, num_steps: int) -> _Clock:
    """What tells the lean window's time of an instant of the full one; it never runs backwards.

    By pairs of events, and by so many steps.
    """
    begins_ns, num_steps = (full.steps[0][0], lean.steps[0][0]), min(num_steps, len(lean.steps))
    known = []
    for window, events, begin_ns in zip((full, lean), pairs.T, begins_ns, strict=True):
        steps = np.array(window.steps[:num_steps], np.int64).ravel()
        known.append(np.concatenate([window.trace.start_ns[events], window.trace.end_ns[events], steps]) - begin_ns)
    order = np.lexsort(known[::-1])
    full_ns, lean_ns = (
        np.concatenate([[ns[0] - FAR_NS], ns, [ns[-1] + FAR_NS]])
        for ns in (known[0][order], np.maximum.accumulate(known[1][order]))
    )
    return lambda at_ns: np.rint(np.interp(at_ns - begins_ns[0], full_ns, lean_ns)).astype(np.int64) + begins_ns[1]
