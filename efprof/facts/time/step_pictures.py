"""Where the time of a step goes, as pictures: nested bars of what it was spent under, one step on its lanes, memory."""

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from efprof.artifacts.trace.columns import ABSENT
from efprof.artifacts.trace.events import Array
from efprof.facts.source.sources import Sources, place_of, split_site
from efprof.facts.time.call_paths import ON_DEVICE, OPERATORS, STEP_LABEL, by_lane, outermost
from efprof.facts.time.device_lanes import COLOURS, idle_gaps, kind_of
from efprof.facts.time.path_tree import CallPath, totals
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import STAGES, Interval, IntervalRow, Intervals, Series, SeriesLine
from efprof.units import format_ms, format_share

MAX_BARS = 700
"""What a page of 1.2 MB has room for, twice: narrower bars than the widest 700 are too thin to be seen."""
MAX_DEPTH = 14
"""Rows that a screen shows at once; what is deeper is operators within modules within modules."""
MIN_SHARE = 1 / 500
"""Of the whole: narrower than a pixel or two."""
MAX_LETTERS = 60
MAX_THREADS = 4
MAX_STREAMS = 8
"""The busiest ones have a lane each, all others one together."""
MAX_BARS_OF_STEP = 4_000 - 2 * MAX_BARS
MEMORY = re.compile(r"^\[memory\]$")
"""How torch's profiler names what an allocator gives out or takes back."""
HOST_TYPE, CUDA, HIP = 0, 1, 6
"""torch's numbers for the types of devices; a build for ROCm writes either of the last two."""

Weight = Callable[[CallPath], int]


def nested_bars(
    window: TraceWindow, sources: Sources, title: str, caption: str, weight: Weight, scale: float
) -> Intervals | None:
    """Bars from stage to line to module to operator, as wide as what was spent under each; None without.

    `weight` gives a path's own nanoseconds, `scale` makes milliseconds per step of them.
    """
    root, spent = window.paths.root, totals(window.paths.root, weight)
    whole_ns, rows, num_bars = spent[root], defaultdict[int, list[Interval]](list), 0
    if not whole_ns:
        return None
    todo = _side_by_side(
        sorted(root.below.values(), key=lambda path: (path.kind != "stage", STAGES.index(path.stage))), spent
    )
    while todo and num_bars < MAX_BARS:
        path, start_ns, row = todo.pop()
        spent_ns = spent[path]
        if spent_ns < MIN_SHARE * whole_ns or row >= MAX_DEPTH:
            continue
        if _is_shown(path):
            label, where = _name_of(path, sources)
            stage, length_ms = f", in {path.stage}" if path.kind != "stage" else "", spent_ns * scale
            note = f"{where}{stage}: {format_ms(length_ms)} per step, {format_share(length_ms / (whole_ns * scale))}"
            bar = Interval(start_ms=start_ns * scale, length_ms=length_ms, label=label, colour=path.stage, note=note)
            rows[row].append(bar)
            row, num_bars = row + 1, num_bars + 1
        todo += _side_by_side(sorted(path.below.values(), key=lambda one: -spent[one]), spent, start_ns, row)
    shown = tuple(IntervalRow(label="", intervals=tuple(rows[row])) for row in sorted(rows))
    return Intervals(title=title, caption=caption, span_ms=whole_ns * scale, rows=shown)


def _side_by_side(
    paths: Sequence[CallPath], spent: dict[CallPath, int], start_ns: int = 0, row: int = 0
) -> list[tuple[CallPath, int, int]]:
    """Each path, where its bar begins and in which row; the last one first, for who takes them from the end."""
    starts = accumulate((spent[path] for path in paths), initial=start_ns)
    return [(path, begin_ns, row) for path, begin_ns in zip(paths, starts, strict=False)][::-1]


def _is_shown(path: CallPath) -> bool:
    """A function below the line that calls it, or its module, adds nothing; nor does a line within itself."""
    if path.kind == "function":
        return path.above is not None and path.above.kind not in ("line", "module")
    outer = path.above.nearest("line") if path.kind == "line" and path.above else None
    return outer is None or outer.text != path.text


def _name_of(path: CallPath, sources: Sources) -> tuple[str, str]:
    """What a path is called in a bar, and where it is in full."""
    match path.kind:
        case "line":
            line = sources.line(path.text)
            return line.text[:MAX_LETTERS] or str(line), f"{line}  {line.text}".rstrip()
        case "function":
            file, number, function = split_site(path.text)
            return f"{function}()", f"{function}() at {file}:{number}"
        case _:
            return path.text.removeprefix("aten::"), path.text


def typical_step(window: TraceWindow) -> int:
    """The place of the step of median length."""
    lengths = [end - start for start, end in window.steps]
    return lengths.index(statistics.median_low(lengths))


class _Part(NamedTuple):
    """Of a lane; `kind` is its colour and the user's line that it was called from, empty if not known."""

    start_ns: int
    end_ns: int
    kind: tuple[str, str]
    label: str


def one_step(window: TraceWindow) -> Intervals:
    """The step of median length on the lanes of its threads and streams, waits and idle gaps coloured by cause."""
    chosen = typical_step(window)
    start_ns, end_ns = window.steps[chosen]
    span_ns = end_ns - start_ns
    lanes = list(_lanes(window, start_ns, end_ns))
    grain_ns = span_ns * max(2 / MAX_BARS, len(lanes) / MAX_BARS_OF_STEP)
    rows = [
        IntervalRow(label=label, intervals=tuple(_merged(parts, start_ns, end_ns, grain_ns))) for label, parts in lanes
    ]
    which = f"Step {window.numbers[chosen]}" if window.has_steps else "All of the trace"
    which = window.span.capitalize() if window.whole_ns else which
    caption = f"{which}, as long as the profiler made it: "
    caption += f"{format_ms(span_ns / 1e6)}. Neighbours too close to tell apart are one bar."
    shown = tuple(row for row in rows if row.intervals)
    return Intervals(title="One step", caption=caption, span_ms=span_ns / 1e6, rows=shown)


def _lanes(window: TraceWindow, start_ns: int, end_ns: int) -> Iterator[tuple[str, Iterable[_Part]]]:
    """Stages, the outermost operators of the busiest threads, what each stream does, and when none does anything."""
    trace = window.trace
    yield "stages", (_Part(start, end, (stage, ""), stage) for start, end, stage, _ in window.paths.stages)
    inside = trace.overlaps(start_ns, end_ns)
    threads = by_lane(trace, inside & trace.is_of(*OPERATORS) & ~trace.matches(STEP_LABEL))
    for events in sorted(threads, key=len, reverse=True)[:MAX_THREADS]:
        first = events[outermost(trace, events)]
        yield f"thread {trace.lanes[int(trace.lane[events[0]])][1]}", _parts(window, first)
    streams = by_lane(trace, inside & trace.is_of(*ON_DEVICE))
    first_busy = sorted(range(len(streams)), key=lambda place: -len(streams[place]))
    for events in (streams[place] for place in sorted(first_busy[:MAX_STREAMS])):
        device, stream = trace.lanes[int(trace.lane[events[0]])]
        yield f"GPU {device} {stream if isinstance(stream, str) else f'stream {stream}'}", _parts(window, events)
    if rest := [streams[place] for place in first_busy[MAX_STREAMS:]]:
        yield f"{len(rest)} more streams", _parts(window, np.sort(np.concatenate(rest)))
    gaps = (gap for gap in idle_gaps(trace, start_ns, end_ns) if gap.length_ns * MAX_BARS >= end_ns - start_ns)
    idle = (_Part(gap.start_ns, gap.end_ns, (COLOURS[gap.cause], ""), f"idle, {gap.cause}") for gap in gaps)
    yield "GPU idle", idle if streams else ()


def _parts(window: TraceWindow, events: Array) -> Iterator[_Part]:
    trace = window.trace
    for event in events.tolist():
        path = window.paths.of_event.get(event)
        line = path.owner if path else None
        colour = {"copy": "window", "communication": "extra"}.get(
            kind_of(trace, event), path.stage if path else "other"
        )
        kind = colour, place_of(line.text) if line else ""
        yield _Part(*trace.span(event), kind, trace.text(event))


def _merged(parts: Iterable[_Part], start_ns: int, end_ns: int, grain_ns: float) -> Iterator[Interval]:
    """Neighbours of one colour and line, closer than the grain, as one bar; so is what ends within it after another."""
    groups = list[list[_Part]]()
    for part in parts:
        part = part._replace(start_ns=max(part.start_ns, start_ns), end_ns=min(part.end_ns, end_ns))
        if part.end_ns <= part.start_ns:
            continue
        first, last = (groups[-1][0], groups[-1][-1]) if groups else (part, part)
        is_next = first.kind == part.kind and part.start_ns - last.end_ns <= grain_ns
        if groups and (is_next or part.end_ns - first.end_ns <= grain_ns):
            groups[-1].append(part._replace(end_ns=max(part.end_ns, last.end_ns)))
        else:
            groups.append([part])
    for group in groups:
        first, length_ms = group[0], (group[-1].end_ns - group[0].start_ns) / 1e6
        alike = [part for part in group if part.kind == first.kind]
        colour, where = first.kind
        label = max(alike, key=lambda part: part.end_ns - part.start_ns).label
        num = f" and {len(group) - 1:,} more" if len(group) > 1 else ""
        at = f" at {where}" if where else ""
        yield Interval(
            start_ms=(first.start_ns - start_ns) / 1e6,
            length_ms=length_ms,
            label=label.removeprefix("aten::")[:MAX_LETTERS],
            colour=colour,
            note=f"{label[:120]}{num}{at}: {format_ms(length_ms)}",
        )


def memory_series(window: TraceWindow) -> Series | None:
    """What the allocator has given out, of the device where there is one: by the events that torch's profiler writes
    with `profile_memory=True`; None without these.
    """
    trace, (start_ns, end_ns) = window.trace, window.bounds
    totals, devices = trace.argument("total_bytes"), trace.argument("device_type")
    known = np.flatnonzero(trace.matches(MEMORY) & (totals != ABSENT))
    if not len(known):
        return None
    on_device = (devices[known] != HOST_TYPE) & (devices[known] != ABSENT)
    known = known[on_device] if on_device.any() else known
    inside = known[(trace.start_ns[known] >= start_ns) & (trace.start_ns[known] <= end_ns)]
    line = SeriesLine(
        label="allocated",
        x=tuple(((trace.start_ns[inside] - start_ns) / 1e6).tolist()),
        y=tuple(totals[inside].astype(float).tolist()),
    )
    return Series(
        title=f"Memory of the {'device' if on_device.any() else 'host'} through the trace",
        x_label="time in the trace",
        x_unit="ms",
        y_label="allocated",
        y_unit="bytes",
        lines=(line,),
        is_stepped=True,
    )
