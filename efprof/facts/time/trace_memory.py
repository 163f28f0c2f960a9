"""Memory through a trace from elsewhere, by the events that torch's profiler writes with `profile_memory=True`."""

from typing import Final

import numpy as np

from efprof.artifacts.trace.columns import ABSENT
from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.time.time_use import TimeUse
from efprof.model import Series, SeriesLine, UnreadableInput

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
    trace, (start_ns, *_), (*_, end_ns) = use.window.trace, use.window.steps[0], use.window.steps[-1]
    totals, devices = trace.argument("total_bytes"), trace.argument("device_type")
    events = np.array(trace.named(MEMORY), np.int64)
    known = events[totals[events] != ABSENT] if len(events) else events
    if not len(known):
        return None
    on_device = devices[known] == CUDA
    known = known[on_device] if on_device.any() else known
    inside = _thinned(known[(trace.start_ns[known] >= start_ns) & (trace.start_ns[known] <= end_ns)], totals)
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


def _thinned(events: Array, totals: Array) -> Array:
    """The highest and the lowest of each stretch, where there are more than a picture shows."""
    if len(events) <= MAX_EVENTS:
        return events
    kept = set()
    for stretch in np.array_split(events, MAX_EVENTS // 2):
        kept |= {int(stretch[totals[stretch].argmax()]), int(stretch[totals[stretch].argmin()])}
    return np.array(sorted(kept), np.int64)
