"""Where the time of a step goes, as pictures: nested bars of what it was spent under, and one step on its lanes."""

import statistics
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from efprof.artifacts.trace.events import Array
from efprof.facts.source.sources import Sources, place_of, split_site
from efprof.facts.time.call_paths import ON_DEVICE, OPERATORS, STEP_LABEL, CallPath, CallPaths, outermost, totals
from efprof.facts.time.device_lanes import idle_gaps, kind_of
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import STAGES, Interval, IntervalRow, Intervals
from efprof.units import format_ms, format_share

MAX_BARS: Final = 700
"""What a page of 1.2 MB has room for, twice: narrower bars than the widest 700 are too thin to be seen."""
MAX_DEPTH: Final = 14
"""Rows that a screen shows at once; what is deeper is operators within modules within modules."""
MIN_SHARE: Final = 1 / 500
"""Of the whole: narrower than a pixel or two."""
MAX_NESTING: Final = 300
"""Of calls, shown and not: Python itself has no more than a thousand."""
NEARLY_ALL: Final = 0.97
MAX_LETTERS: Final = 60

Weight = Callable[[CallPath], int]


def nested_bars(
    window: TraceWindow, sources: Sources, title: str, caption: str, weight: Weight, scale: float
) -> Intervals:
    """Bars from stage to line to module to operator, each as wide as what was spent under it.

    `weight` gives a path's own nanoseconds, `scale` makes milliseconds per step of them.
    """
    root = window.paths.root
    bars = _Bars(root, weight, scale, sources)
    ordered = sorted(root.below.values(), key=lambda path: (path.kind != "stage", _place(path.stage)))
    bars.lay(ordered, 0, 0)
    rows = tuple(IntervalRow(label="", intervals=tuple(row)) for row in bars.rows if row)
    return Intervals(title=title, caption=caption, span_ms=bars.total_ns * scale, rows=rows)


class _Bars:
    def __init__(self, root: CallPath, weight: Weight, scale: float, sources: Sources) -> None:
        self.rows: list[list[Interval]] = [[] for _ in range(MAX_DEPTH)]
        self._weight, self._scale, self._sources = weight, scale, sources
        self._totals = totals(root, weight)
        self.total_ns = self._totals[id(root)]
        self._num_bars = 0

    def lay(self, paths: list[CallPath], start_ns: int, depth: int, nesting: int = 0) -> None:
        """Put paths side by side, and what is below each under it."""
        for path in paths:
            total_ns = self._totals[id(path)]
            if (
                total_ns < MIN_SHARE * self.total_ns
                or depth >= MAX_DEPTH
                or nesting > MAX_NESTING
                or self._num_bars >= MAX_BARS
            ):
                continue
            inner = sorted(path.below.values(), key=lambda one: -self._totals[id(one)])
            if _is_shown(path) and not self._only_leads_on(path, total_ns):
                self.rows[depth].append(self._bar(path, start_ns, total_ns))
                self._num_bars += 1
                self.lay(inner, start_ns, depth + 1, nesting + 1)
            else:
                self.lay(inner, start_ns, depth, nesting + 1)
            start_ns += total_ns

    def _only_leads_on(self, path: CallPath, total_ns: int) -> bool:
        """Whether nearly all of a line's time is that of one line further in, as where `main()` is called."""
        further = (inner for one in path.below.values() for inner in (one, *one.below.values()) if inner.kind == "line")
        return path.kind == "line" and any(self._totals[id(one)] >= NEARLY_ALL * total_ns for one in further)

    def _bar(self, path: CallPath, start_ns: int, total_ns: int) -> Interval:
        label, where = name_of(path, self._sources)
        spent_ms = total_ns * self._scale
        own_ns = max(0, self._weight(path))
        share = format_share(total_ns / self.total_ns)
        own = f", {format_ms(own_ns * self._scale)} of it its own" if 0 < own_ns < total_ns else ""
        times = f", in {path.stage}" if path.kind != "stage" and path.stage in STAGES else ""
        return Interval(
            start_ms=start_ns * self._scale,
            length_ms=spent_ms,
            label=label,
            colour=path.stage,
            note=f"{where or label}{times}: {format_ms(spent_ms)} per step, {share}{own}",
        )


def _is_shown(path: CallPath) -> bool:
    """A function below the line that calls it, or its module, adds nothing; nor does a line within itself."""
    if path.kind == "function":
        return path.above is not None and path.above.kind not in ("line", "module")
    outer = path.above.nearest("line") if path.kind == "line" and path.above else None
    return outer is None or outer.text != path.text


def _place(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def name_of(path: CallPath, sources: Sources) -> tuple[str, str]:
    """What a path is called in a bar, and where it is in full."""
    match path.kind:
        case "line":
            line = sources.line(path.text)
            return line.text[:MAX_LETTERS] or str(line), f"{line}  {line.text}".rstrip()
        case "function":
            file, number, function = split_site(path.text)
            return f"{function}()", f"{function}() at {file}:{number}"
        case "operator":
            return path.text.removeprefix("aten::"), path.text
        case _:
            return path.text, ""


def typical_step(window: TraceWindow) -> int:
    """The place of the step of median length."""
    lengths = [end - start for start, end in window.steps]
    return lengths.index(statistics.median_low(lengths))


def one_step(window: TraceWindow, title: str) -> Intervals:
    """The step of median length on the lanes of its threads and streams, waits and idle gaps coloured by cause."""
    chosen = typical_step(window)
    start_ns, end_ns = window.steps[chosen]
    lanes = _StepLanes(window, start_ns, end_ns)
    rows = [row for row in (lanes.stages(), *lanes.threads(), *lanes.streams(), lanes.idle()) if row.intervals]
    number = f" {window.numbers[chosen]}" if window.has_steps else ""
    caption = f"{'Step' if window.has_steps else 'All of the trace'}{number}, as long as the profiler made it: "
    caption += f"{_ms(end_ns - start_ns)}. Neighbours too close to tell apart are one bar."
    return Intervals(title=title, caption=caption, span_ms=(end_ns - start_ns) / 1e6, rows=tuple(rows))


def stage_bands(paths: CallPaths, from_ns: int, to_ns: int) -> list[tuple[int, int, str]]:
    """The stages between two instants, one after the other; neighbours of one stage too close to tell apart are one."""
    bands: list[tuple[int, int, str]] = []
    reached_ns, near_ns = from_ns, 10 * (to_ns - from_ns) / MAX_BARS
    for start_ns, end_ns, stage, _ in paths.stages:
        start_ns, end_ns = max(start_ns, reached_ns), min(end_ns, to_ns)
        if end_ns <= start_ns:
            continue
        if bands and bands[-1][2] == stage and start_ns - reached_ns < near_ns:
            start_ns, _, _ = bands.pop()
        bands.append((start_ns, end_ns, stage))
        reached_ns = end_ns
    return bands


class _StepLanes:
    def __init__(self, window: TraceWindow, start_ns: int, end_ns: int) -> None:
        self._trace, self._paths = window.trace, window.paths
        self._start_ns, self._end_ns = start_ns, end_ns
        trace = self._trace
        inside = (trace.start_ns < end_ns) & (trace.end_ns > start_ns)
        self._operators = np.flatnonzero(inside & trace.is_of(*OPERATORS) & ~trace.matches(STEP_LABEL))
        self._kernels = np.flatnonzero(inside & trace.is_of(*ON_DEVICE))
        self._grain_ns = (end_ns - start_ns) / MAX_BARS * 2

    def stages(self) -> IntervalRow:
        """The stages as the thread of the steps goes through them."""
        bands = stage_bands(self._paths, self._start_ns, self._end_ns)
        found = [
            self._interval(start, end, stage, stage, f"{stage}: {_ms(end - start)}") for start, end, stage in bands
        ]
        return IntervalRow(label="stages", intervals=tuple(found))

    def threads(self) -> Iterator[IntervalRow]:
        """The outermost operators of each thread, the busiest first."""
        by_lane = [
            self._operators[self._trace.lane[self._operators] == lane]
            for lane in np.unique(self._trace.lane[self._operators])
        ]
        for events in sorted(by_lane, key=len, reverse=True)[:4]:
            first = outermost(self._trace.start_ns[events], self._trace.end_ns[events])
            thread = self._trace.lanes[int(self._trace.lane[events[0]])][1]
            yield IntervalRow(label=f"thread {thread}", intervals=tuple(self._merged(events[first])))

    def streams(self) -> Iterator[IntervalRow]:
        """What each stream of each device does."""
        for lane in np.unique(self._trace.lane[self._kernels]):
            events = self._kernels[self._trace.lane[self._kernels] == lane]
            device, stream = self._trace.lanes[int(lane)]
            name = stream if isinstance(stream, str) else f"stream {stream}"
            yield IntervalRow(label=f"GPU {device} {name}", intervals=tuple(self._merged(events)))

    def idle(self) -> IntervalRow:
        """When no stream had anything to do, and why."""
        gaps = idle_gaps(self._trace, self._start_ns, self._end_ns) if len(self._kernels) else []
        found = [
            self._interval(gap.start_ns, gap.end_ns, gap.cause, gap.colour, f"idle, {gap.cause}: {_ms(gap.length_ns)}")
            for gap in gaps
            if gap.length_ns >= self._grain_ns / 2
        ]
        return IntervalRow(label="GPU idle", intervals=tuple(found))

    def _merged(self, events: Array) -> Iterator[Interval]:
        """Neighbours of one colour and line, closer than a pixel, as one bar."""
        group: list[int] = []
        known, end_ns = ("", ""), 0
        for event in events.tolist():
            of_event = self._colour(event), self._line(event)
            if group and (of_event != known or int(self._trace.start_ns[event]) - end_ns > self._grain_ns):
                yield self._bar(group, end_ns, *known)
                group = []
            if not group:
                known, end_ns = of_event, 0
            group.append(event)
            end_ns = max(end_ns, int(self._trace.end_ns[event]))
        if group:
            yield self._bar(group, end_ns, *known)

    def _line(self, event: int) -> str:
        """The user's line that it was called or launched from; empty where that is not known."""
        path = self._paths.of_event.get(event)
        line = path.nearest("line", "function") if path else None
        return place_of(line.text) if line else ""

    def _bar(self, group: list[int], end_ns: int, colour: str, line: str) -> Interval:
        first = self._trace.text(group[0])
        start_ns = max(int(self._trace.start_ns[group[0]]), self._start_ns)
        end_ns = min(end_ns, self._end_ns)
        at = f" at {line}" if line else ""
        more = f" and {len(group) - 1:,} more" if len(group) > 1 else ""
        label = first.removeprefix("aten::")
        return self._interval(start_ns, end_ns, label, colour, f"{first[:120]}{more}{at}: {_ms(end_ns - start_ns)}")

    def _colour(self, event: int) -> str:
        kind = kind_of(self._trace, event)
        if kind in ("copy", "communication"):
            return {"copy": "window", "communication": "extra"}[kind]
        path = self._paths.of_event.get(event)
        return path.stage if path else "other"

    def _interval(self, start_ns: int, end_ns: int, label: str, colour: str, note: str) -> Interval:
        return Interval(
            start_ms=(start_ns - self._start_ns) / 1e6,
            length_ms=(end_ns - start_ns) / 1e6,
            label=label[:MAX_LETTERS],
            colour=colour,
            note=note,
        )


def _ms(nanoseconds: float) -> str:
    return format_ms(nanoseconds / 1e6)
