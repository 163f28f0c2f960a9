"""Memory through a trace from elsewhere, by the events that torch's profiler writes with `profile_memory=True`."""

from typing import Final

import numpy as np

from efprof.artifacts.trace.columns import ABSENT
from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.source.sources import place_of
from efprof.facts.time.time_use import TimeUse
from efprof.model import Series, SeriesLine, StageBand, UnreadableInput

CUDA: Final = 1
"""torch's number for the type of a CUDA or ROCm device; the host's is 0."""
MEMORY: Final = "[memory]"
MAX_EVENTS: Final = 1200
"""More points than a screen has columns."""


def memory_series(run: Run) -> Series | None:
    """What the allocator has given out, event by event, of the device where there is one; None where nothing tells."""
    use = run.find(TimeUse, UnreadableInput)
    if use is None:
        return None
    trace, paths, (start_ns, end_ns) = use.window.trace, use.window.paths, _span(use)
    totals, devices = trace.argument("total_bytes"), trace.argument("device_type")
    events = np.array(trace.named(MEMORY), np.int64)
    known = events[totals[events] != ABSENT] if len(events) else events
    if not len(known):
        return None
    on_device = devices[known] == CUDA
    known = known[on_device] if on_device.any() else known
    inside = _thinned(known[(trace.start_ns[known] >= start_ns) & (trace.start_ns[known] <= end_ns)], totals)
    bands = tuple(
        StageBand(start=(start - start_ns) / 1e6, end=(end - start_ns) / 1e6, stage=stage, step=0)
        for start, end, stage, _ in paths.stages
        if start_ns <= start and end <= end_ns and end - start >= (end_ns - start_ns) / MAX_EVENTS
    )
    line = SeriesLine(
        label="allocated",
        x=tuple(((trace.start_ns[inside] - start_ns) / 1e6).tolist()),
        y=tuple(totals[inside].astype(float).tolist()),
        notes=tuple(_lines_at(use, inside.tolist())),
    )
    return Series(
        title=f"Memory of the {'device' if on_device.any() else 'host'} through the trace",
        x_label="time in the trace",
        x_unit="ms",
        y_label="allocated",
        y_unit="bytes",
        lines=(line,),
        is_stepped=True,
        bands=bands,
    )


def _thinned(events: Array, totals: Array) -> Array:
    """The highest and the lowest of each stretch, where there are more than a picture shows."""
    if len(events) <= MAX_EVENTS:
        return events
    kept = set()
    for stretch in np.array_split(events, MAX_EVENTS // 2):
        kept |= {int(stretch[totals[stretch].argmax()]), int(stretch[totals[stretch].argmin()])}
    return np.array(sorted(kept), np.int64)


def _span(use: TimeUse) -> tuple[int, int]:
    return use.window.steps[0][0], use.window.steps[-1][1]


def _lines_at(use: TimeUse, events: list[int]) -> list[str]:
    """The user's line, or the operator, around each event."""
    trace, of_event = use.window.trace, use.window.paths.of_event
    hosts = np.array(sorted(event for event in of_event if trace.duration_ns[event] > 0), np.int64)
    found = []
    for event in events:
        at_ns, lane = trace.start_ns[event], trace.lane[event]
        place = int(np.searchsorted(trace.start_ns[hosts], at_ns, side="right")) - 1
        note = ""
        for host in hosts[max(0, place - 20) : place + 1][::-1].tolist():
            if trace.lane[host] == lane and trace.end_ns[host] >= at_ns:
                path = of_event[host]
                line = path.nearest("line", "function")
                note = " ".join(
                    filter(None, (trace.text(host).removeprefix("aten::"), place_of(line.text) if line else ""))
                )
                break
        found.append(note)
    return found
