"""At which lines the host waits for the device, what asks for it, how often and how long: each millisecond once."""

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple, Self

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, functions_in
from efprof.facts.steps.step_times import StepTimes, median_interval
from efprof.facts.time.launching_lines import blame_of
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_waits import Kind, TraceWait, before_the_end, waits_in
from efprof.model import NotRecorded, Row, SourceLine, Table, UnreadableInput, frozen_dataclass
from efprof.units import format_count, format_ms, format_share, format_times

LineKey = tuple[Kind, str, tuple[str, ...]]
"""What is one line's: its kind, where it is, and the functions of the library that it calls."""

MIN_STEPS = 5
"""Fewer steady steps cannot tell a wait in every step from one in a few."""


@frozen_dataclass
class WaitingLine:
    """One line; `counts` and `ms` have an entry for each step, `calls` (`item`, `copy`) the most frequent first.

    Where a library that it calls waits, `library` has the library's frames, the innermost first.
    Where a trace tells it, `events` are the waiting calls, and `idle_ms` is how long in each step the device, which ran
    dry in these waits, then had nothing to do.
    """

    blame: SourceLine
    kind: Kind
    calls: tuple[str, ...]
    counts: tuple[int, ...]
    ms: tuple[float, ...]
    idle_ms: float | None
    events: frozenset[int]
    library: tuple[str, ...]

    @property
    def key(self) -> "LineKey":
        return self.kind, str(self.blame), functions_in(self.library)

    @property
    def count(self) -> float:
        """Waits per step: the median, not moved by a last step that ended before the next one's data was read."""
        return statistics.median(self.counts)

    @property
    def share_of_steps(self) -> float:
        """The share of steps in which the line waited at all."""
        return sum(map(bool, self.counts)) / len(self.counts)

    @property
    def typical_ms(self) -> float:
        """Per step inside the calls: of the median step that waited, so that one on a busy machine does not count."""
        return self.share_of_steps * statistics.median(self._ms_where_waited)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The 95 % interval of `typical_ms`."""
        low, high = median_interval(self._ms_where_waited)
        return self.share_of_steps * low, self.share_of_steps * high

    @property
    def times(self) -> str:
        """`8 times per step`."""
        if self.count < 1:
            return "in half of the steps"
        return f"{format_times(self.count)} per step"

    @property
    def _ms_where_waited(self) -> list[float]:
        return [ms for ms, count in zip(self.ms, self.counts, strict=True) if count]


@frozen_dataclass
class HostWaits:
    """The lines, the longest waits first; `steps` says what was looked at.

    `use` is the trace that tells what the device does meanwhile, where one does.
    """

    lines: tuple[WaitingLine, ...]
    steps: str
    step_ms: float
    is_gpu: bool
    use: TimeUse | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Of the steady steps and of the last window; raises NotRecorded of a trace without work for a device."""
        use = _use_of_device(run)
        num_steps = len(use.window.steps) if use else 0
        lines = _lines(_traced(use, run.get(Sources)), num_steps) if use else []
        traced = {line.key: line for line in lines}
        steps, step_ms = f"{format_count(num_steps, 'step')} of a trace", use.step_ms if use else 0.0
        if not run.is_foreign:
            steady, step_ms = run.get(StepTimes).at_least(MIN_STEPS), run.get(StepTimes).median_ms()
            steps, lines = f"{len(steady)} steps", _lines(_recorded(run), len(steady))
            for number, line in enumerate(lines):  # with what a trace tells of it
                seen = traced.pop(line.key, line)
                lines[number] = replace(line, idle_ms=seen.idle_ms, events=seen.events)
            lines += traced.values()
        lines.sort(key=lambda line: (-line.typical_ms, line.blame.key, line.library))
        is_gpu = run.is_foreign or bool(run.run_file.devices)
        return cls(lines=tuple(lines), steps=steps, step_ms=step_ms, is_gpu=is_gpu, use=use)

    def of(self, kind: Kind) -> list[WaitingLine]:
        return [line for line in self.lines if line.kind == kind]

    @property
    def late_ms(self) -> float:
        """How long in each step of the trace the device has nothing to do since the host has launched nothing."""
        if self.use is None or self.use.device is None:
            return 0.0
        late_ns = self.use.device.idle_ns["the host had launched nothing"]
        return self.use.window.scale * self.use.per_step_ms(late_ns)

    def share(self, lines: Sequence[WaitingLine]) -> float:
        """Of the step, inside the waits of these lines."""
        return sum(line.typical_ms for line in lines) / self.step_ms if self.step_ms else 0.0

    def cost(self, *lines: WaitingLine) -> str:
        """`1.55 ms per step (10 %)`."""
        share = self.share(lines)
        of_step = format_share(share) if share >= 0.001 else "under 0.1 %"
        return f"{format_ms(share * self.step_ms)} per step ({of_step})"

    def table(self) -> Table:
        """Of all waits, those that torch asks for itself among them."""
        rows: list[Row] = []
        for one in self.lines:
            idle, code = "" if one.idle_ms is None else one.idle_ms, f"`{one.blame.text}`" * bool(one.blame.text)
            asked = " in ".join([", ".join(one.calls), *one.library[:1]])
            rows.append((f"`{one.blame}`", code, asked, one.count, one.typical_ms, idle))
        columns = {"line": "", "code": "", "asked for by": "", "waits per step": "count", "time per step": "ms"}
        return Table.of("All waits of the host", columns | {"device then idle": "ms"}, rows)


def _use_of_device(run: Run) -> TimeUse | None:
    """The trace that tells what a device does; raises NotRecorded where there is nothing but a trace without any."""
    if not run.is_foreign:
        use = run.find(TimeUse, UnreadableInput) if run.run_file.devices else None
        return use if use and use.device else None
    if run.get(TimeUse).device is None:
        raise NotRecorded("the trace has no work of a device; profile with `ProfilerActivity.CUDA` too.")
    return run.get(TimeUse)


class _Seen(NamedTuple):
    """Waits in one step at one line: `num_calls` of the recorder's, or one wait of a trace."""

    kind: Kind
    blame: SourceLine
    step: int
    call: str
    num_calls: int
    ms: float
    library: tuple[str, ...]
    wait: TraceWait | None = None


def _recorded(run: Run) -> Iterator[_Seen]:
    """In steady steps. To know how many values are not zero reads none of them."""
    line_of = cache(run.get(Sources).line)
    for step, time in enumerate(run.get(StepTimes).steady):
        for one in time.record.reads:
            kind: Kind = "synchronisation" if one.call == "nonzero" else "read"
            yield _Seen(kind, line_of(one.site), step, one.call, one.count, one.us / 1000, one.library)
        for one in time.record.stalls:
            if "synchronize" in one.call:
                blame, ms = line_of(one.site), one.us / 1000
                yield _Seen("synchronisation", blame, step, "synchronize", one.count, ms, one.library)


def _traced(use: TimeUse, sources: Sources) -> Iterator[_Seen]:
    starts = [start for start, _ in use.window.steps]
    for wait in before_the_end(use.window, waits_in(use.window)):
        step = max(0, bisect_right(starts, wait.start_ns) - 1)
        ms = wait.waited_ns / 1e6 * use.window.scale
        yield _Seen(wait.kind, blame_of(wait.path, sources), step, wait.asked, 1, ms, wait.library, wait)


def _lines(seen: Iterable[_Seen], num_steps: int) -> list[WaitingLine]:
    by_line = defaultdict[LineKey, list[_Seen]](list)
    for one in seen:
        by_line[one.kind, str(one.blame), functions_in(one.library)].append(one)
    return [_line(together, num_steps) for together in by_line.values()]


def _line(seen: Sequence[_Seen], num_steps: int) -> WaitingLine:
    calls, counts, ms = Counter[str](), [0] * num_steps, [0.0] * num_steps
    for one in seen:
        calls[one.call] += one.num_calls
        counts[one.step] += one.num_calls
        ms[one.step] += one.ms
    waits = [one.wait for one in seen if one.wait]
    return WaitingLine(
        blame=seen[0].blame,
        kind=seen[0].kind,
        calls=tuple(call for call, _ in calls.most_common()),
        counts=tuple(counts),
        ms=tuple(ms),
        idle_ms=sum(wait.idle_ns for wait in waits) / 1e6 / num_steps if waits else None,
        events=frozenset(event for wait in waits for event in wait.events),
        library=seen[0].library,
    )
