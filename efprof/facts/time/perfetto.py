"""The typical step of a run or a trace, or the steps of a finding, as a trace that opens in Perfetto."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Final

import msgspec
import numpy as np

from efprof.artifacts.trace.blocks import Header
from efprof.artifacts.trace.events import Array, Block
from efprof.artifacts.trace.excerpt import excerpt
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE
from efprof.facts.time.device_lanes import idle_gaps
from efprof.facts.time.step_pictures import stage_bands, typical_step
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.model import Finding, NotRecorded

AFTER_A_LAUNCH: Final = (*ON_DEVICE, "ac2g", "async_cpu_to_gpu")
"""What has the number of a launch: what it launched, and the arrow to it."""
STAGES, IDLE, FINDING = 1, 2, 3
LANES: Final = {STAGES: "stages", IDLE: "device idle", FINDING: "finding"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsForPerfetto:
    """Steps of a window by their places in it; `marks` are the instants at which the finding's line begins in each."""

    window: TraceWindow
    places: tuple[int, ...]
    finding: Finding | None = None
    marks: tuple[int, ...] = ()

    @classmethod
    def typical(cls, run: Run, finding: Finding | None = None) -> "StepsForPerfetto":
        """The step of median length of the window that the report shows; raises NotRecorded without a trace."""
        window = run.get(TimeUse).window
        if not len(window.trace):
            raise NotRecorded(f"{window.path.name} holds no event; record the training again.")
        place = typical_step(window)
        return cls(window=window, places=(place,), finding=finding, marks=(window.steps[place][0],) if finding else ())

    @classmethod
    def of(cls, run: Run, finding: Finding) -> "StepsForPerfetto":
        """The steps in which its line ran, of the last window with any; where its line is in none, the typical step."""
        for window in reversed(run.get(TraceWindows).windows):
            starts = _starts(window, finding, run.get(Sources))
            first = {
                place: int(inside.min())
                for place, (start_ns, end_ns) in enumerate(window.steps)
                if len(inside := starts[(starts >= start_ns) & (starts < end_ns)])
            }
            if first:
                return cls(window=window, places=tuple(first), finding=finding, marks=tuple(first.values()))
        return cls.typical(run, finding)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self.window.numbers[place] for place in self.places)

    def packed(self) -> bytes:
        """The file: the events of these steps as they were, what they launched, and lanes of ours."""
        trace, spans = self.window.trace, self._spans()
        launches = np.flatnonzero(trace.is_of(*LAUNCHES) & (trace.id >= 0))
        launched = trace.id[launches[_overlap(trace.start_ns[launches], trace.end_ns[launches], spans)]]

        def chosen(block: Block) -> Array:
            start_ns = block.dense["start_ns"] + trace.header.base_ns
            codes = [code for code, text in enumerate(block.texts) if text.lower() in AFTER_A_LAUNCH]
            is_launched = np.isin(block.dense["category"], codes) & np.isin(block.dense["id"], launched)
            is_told_of_lanes = block.dense["phase"] == ord("M")
            is_inside = _overlap(start_ns, start_ns + block.dense["duration_ns"], spans)
            found: Array = is_inside | is_launched | is_told_of_lanes
            return found

        return excerpt(self.window.path, chosen, [*self._names(), *self._lanes()])

    def _spans(self) -> list[tuple[int, int]]:
        return [self.window.steps[place] for place in self.places]

    def _process(self) -> int:
        used = {process for process, _ in self.window.trace.lanes}
        return next(number for number in count(1) if number not in used)

    def _names(self) -> Iterator[dict[str, object]]:
        ours: dict[str, object] = {"ph": "M", "pid": self._process()}
        yield ours | {"name": "process_name", "args": {"name": "efprof"}}
        yield ours | {"name": "process_sort_index", "args": {"sort_index": -1}}
        for lane, name in LANES.items():
            yield ours | {"name": "thread_name", "tid": lane, "args": {"name": name}}

    def _lanes(self) -> Iterator[dict[str, object]]:
        trace = self.window.trace
        ours: dict[str, object] = {"pid": self._process(), "cat": "efprof"}
        for start_ns, end_ns in self._spans():
            for begin_ns, until_ns, stage in stage_bands(self.window.paths, start_ns, end_ns):
                yield ours | {"name": stage, "tid": STAGES} | _times(trace.header, begin_ns, until_ns)
            for gap in idle_gaps(trace, start_ns, end_ns) if trace.is_of(*ON_DEVICE).any() else ():
                times = _times(trace.header, gap.start_ns, gap.end_ns)
                yield ours | {"name": f"idle: {gap.cause}", "tid": IDLE} | times
        if self.finding is None:
            return
        for at_ns in self.marks:
            told = {"line": str(self.finding.blame), "message": self.finding.message, "fix": self.finding.fix.summary}
            mark = {"ph": "i", "s": "g", "name": self.finding.headline, "tid": FINDING, "args": told}
            yield ours | _times(trace.header, at_ns, at_ns) | mark


def _times(header: Header, start_ns: int, end_ns: int) -> dict[str, object]:
    """Of a complete event, in microseconds since the file's own beginning: decimals, which no float cuts."""
    start_us = Decimal(start_ns - header.base_ns).scaleb(-3)
    return {"ph": "X", "ts": msgspec.Raw(f"{start_us:f}".encode()), "dur": (end_ns - start_ns) / 1e3}


def _overlap(starts: Array, ends: Array, spans: list[tuple[int, int]]) -> Array:
    found = np.zeros(len(starts), bool)
    for start_ns, end_ns in spans:
        found |= (starts < end_ns) & ((ends > start_ns) | (starts >= start_ns))
    return found


def _starts(window: TraceWindow, finding: Finding, sources: Sources) -> Array:
    """When the events begin that were called from the finding's line."""
    on_line: set[int] = set()
    for path in window.paths.root.walk():
        is_line = path.kind in ("line", "function") and str(sources.line(path.text)) == str(finding.blame)
        if is_line or id(path.above) in on_line:
            on_line.add(id(path))
    events = [event for event, path in window.paths.of_event.items() if id(path) in on_line]
    found: Array = window.trace.start_ns[events]
    return found
