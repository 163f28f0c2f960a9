"""The typical step of a run or a trace, or the steps of a finding, as a trace that opens in Perfetto."""

from typing import Self

import numpy as np

from efprof.artifacts.trace.blocks import excerpt
from efprof.artifacts.trace.events import Array, Block
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.step_pictures import typical_step
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.model import Finding, NotRecorded, frozen_dataclass

AFTER_A_LAUNCH = (*ON_DEVICE, "ac2g", "async_cpu_to_gpu")
"""What has the number of a launch: what it launched, and the arrow to it."""
NAMES_OF_LANES = ord("M")


@frozen_dataclass
class StepsForPerfetto:
    """Steps of a window: by their places in it, when the finding's line begins in each, or the step itself."""

    window: TraceWindow
    begins_ns: dict[int, int]
    finding: Finding | None

    @classmethod
    def of(cls, run: Run, finding: Finding | None) -> Self:
        """The steps in which its line ran, of the last window with any; else the step that the report shows.

        A window is written at its own times, not at those of the lean one after it. Raises NotRecorded without a trace.
        """
        if finding is not None:
            for window in reversed(run.get(TraceWindows).windows):
                if begins_ns := _begins_ns(window, finding, run.get(Sources)):
                    return cls(window=window, begins_ns=begins_ns, finding=finding)
        told = run.get(TimeUse).window
        window = next(one for one in run.get(TraceWindows).windows if one.path == told.path)
        if not len(window.trace):
            raise NotRecorded(f"{window.path.name} holds no event; record the training again.")
        place = typical_step(window)
        return cls(window=window, begins_ns={place: window.steps[place][0]}, finding=finding)

    def packed(self) -> bytes:
        """The file: the events of these steps as they were, what they launched, and a mark of ours in each."""
        trace, spans = self.window.trace, [self.window.steps[place] for place in self.begins_ns]
        launched = trace.id[trace.is_of(*LAUNCHES) & (trace.id >= 0) & _overlap(trace.start_ns, trace.end_ns, spans)]

        def chosen(block: Block) -> Array:
            start_ns = block.dense["start_ns"] + trace.header.base_ns
            codes = [code for code, text in enumerate(block.texts) if text.lower() in AFTER_A_LAUNCH]
            found = _overlap(start_ns, start_ns + block.dense["duration_ns"], spans)
            found |= np.isin(block.dense["category"], codes) & np.isin(block.dense["id"], launched)
            found |= block.dense["phase"] == NAMES_OF_LANES
            return found

        return excerpt(self.window.path, chosen, self._marks())

    def _marks(self) -> list[dict[str, object]]:
        """Where each step is worth a look, in microseconds since the file's own beginning."""
        told, name = dict[str, str](), "the typical step"
        if self.finding is not None:
            name = self.finding.headline
            told = {"line": str(self.finding.blame), "message": self.finding.message, "fix": self.finding.fix.summary}
        lane, base_ns = self.window.trace.lanes[0], self.window.trace.header.base_ns
        mark = {"ph": "i", "s": "g", "cat": "efprof", "name": name, "pid": lane[0], "tid": lane[1], "args": told}
        return [mark | {"ts": (at_ns - base_ns) / 1e3} for at_ns in self.begins_ns.values()]


def _overlap(starts: Array, ends: Array, spans: list[tuple[int, int]]) -> Array:
    found = np.zeros(len(starts), bool)
    for start_ns, end_ns in spans:
        found |= (starts < end_ns) & ((ends > start_ns) | (starts >= start_ns))
    return found


def _begins_ns(window: TraceWindow, finding: Finding, sources: Sources) -> dict[int, int]:
    """When the first event begins that was called from the finding's line, in each step that has one."""
    on_line = set[CallPath | None]()
    for path in window.walk():
        is_line = path.owner is path and str(sources.line(path.text)) == str(finding.blame)
        if is_line or path.above in on_line:
            on_line.add(path)
    events = [event for event, path in window.paths.of_event.items() if path in on_line]
    starts = np.sort(window.trace.start_ns[events])
    found = {}
    for place, (start_ns, end_ns) in enumerate(window.steps):
        first = int(np.searchsorted(starts, start_ns))
        if first < len(starts) and starts[first] < end_ns:
            found[place] = int(starts[first])
    return found
