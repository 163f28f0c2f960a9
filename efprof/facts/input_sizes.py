"""By how much the inputs of the forward pass's operators grew between profiler windows, as traces tell it."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, Self

import msgspec

from efprof.artifacts.trace import Trace, TraceEvent, read_trace, trace_paths
from efprof.facts.run import Run
from efprof.facts.step_times import StepTime, StepTimes

OPERATOR = "cpu_op"
LEAST_GROWN_SHARE = 0.75
"""Of the early forward pass's time, in operators with larger inputs: a line that goes through what gets longer has
larger inputs too, but longer data passes through nearly all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputGrowth:
    """`factor` is what most operators' inputs, by the operators' time, grew by at least from first window to last.

    It is 1 where fewer than two windows tell of operators. `largest_factor` is what any operator's largest single
    tensor grew by: where that is 1, operators are called more often, with what is as large as before.
    """

    factor: float
    largest_factor: float = 1.0

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read the first and the last trace that hold a step; raises NotRecorded where there is none."""
        times, windows = run.get(StepTimes), []
        for path in trace_paths(run.rank_folder):
            steps = [time for time in times.every if time.record.window == path.name.split(".")[0]]
            if steps:
                windows.append((path, steps))
        if len(windows) < 2:
            return cls(factor=1.0)
        early, late = (_forward_operators(read_trace(path), steps) for path, steps in (windows[0], windows[-1]))
        factors = [_factor(operator.largest, late[name].largest) for name, operator in early.items() if name in late]
        return cls(factor=_factor_of_most(early, late), largest_factor=max(factors, default=1.0))


@dataclass(slots=True)
class _Operator:
    """All calls of one operator: nanoseconds outside of deeper ones, and elements of each of its inputs, per step.

    `largest` has the elements of the largest tensor that any call had in each place.
    """

    own_ns: float = 0.0
    num_elements: Counter[int] = field(default_factory=Counter)
    largest: Counter[int] = field(default_factory=Counter)


def _forward_operators(trace: Trace, steps: list[StepTime]) -> dict[str, _Operator]:
    """By name, those that were called in the forward stage of the steps."""
    found: dict[str, _Operator] = defaultdict(_Operator)
    calls = sorted(_calls_within(trace, steps), key=lambda call: str(call.thread))
    for _, in_thread in groupby(calls, key=lambda call: str(call.thread)):
        _add_thread(in_thread, found)
    for operator in found.values():
        operator.own_ns /= len(steps)
        operator.num_elements = Counter({at: count // len(steps) for at, count in operator.num_elements.items()})
    return found


def _calls_within(trace: Trace, steps: list[StepTime]) -> Iterator[TraceEvent]:
    spans = sorted(
        (step.record.started_ns + round(span.start_us * 1000), step.record.started_ns + round(span.end_us * 1000))
        for step in steps
        for span in step.record.spans
        if span.stage == "forward"
    )
    starts = [start for start, _ in spans]
    for event in trace.events:
        at = bisect_right(starts, event.start_ns) - 1
        if event.category == OPERATOR and at >= 0 and event.end_ns <= spans[at][1]:
            yield event


def _add_thread(calls: Iterable[TraceEvent], found: dict[str, _Operator]) -> None:
    """Add up the calls of one thread, outer before inner."""
    open_calls: list[TraceEvent] = []
    for event in calls:
        while open_calls and open_calls[-1].end_ns <= event.start_ns:
            open_calls.pop()
        if open_calls:
            found[open_calls[-1].name].own_ns -= event.duration_ns
        operator = found[event.name]
        operator.own_ns += event.duration_ns
        for place, sizes in enumerate(_sizes_in(bytes(event.arguments.input_sizes))):
            operator.num_elements[place] += sum(sizes)
            operator.largest[place] = max(operator.largest[place], *sizes)
        open_calls.append(event)


@cache
def _sizes_in(input_sizes: bytes) -> tuple[tuple[int, ...], ...]:
    """`[[512, 128], [[4, 2], [4, 1]], []]`: elements of a matrix, of each in a list of matrices, and of a number."""
    shapes = msgspec.json.decode(input_sizes) if input_sizes else []
    return tuple(map(_sizes_of, shapes)) if isinstance(shapes, list) else ()


def _sizes_of(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, list) and shape and isinstance(shape[0], list):
        return tuple(size for part in shape for size in _sizes_of(part))
    is_shape = isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    return (math.prod(shape) if is_shape else 0,)


def _factor_of_most(early: dict[str, _Operator], late: dict[str, _Operator]) -> float:
    """By how much an operator's inputs grew that those with most of the early time grew more than."""
    least_ns = (1 - LEAST_GROWN_SHARE) * sum(operator.own_ns for operator in early.values())
    counts = {name: operator.num_elements for name, operator in late.items()}
    grown = sorted(
        (_factor(operator.num_elements, counts.get(name, Counter())), operator.own_ns)
        for name, operator in early.items()
    )
    for factor, own_ns in grown:
        least_ns -= own_ns
        if least_ns < 0:
            return factor
    return 1.0


def _factor(early: Counter[int], late: Counter[int]) -> float:
    """Of the input that grew most: the others may be weights."""
    return max((late[at] / before for at, before in early.items() if before), default=0.0)
