"""How long the steps of a trace wait for their batches, which line asks for them, and what the device loses by it."""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.step_times import mean_interval
from efprof.facts.time.call_paths import HOST
from efprof.facts.time.device_lanes import overlap_ns, spans_of
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import Examination, Finding, Fix, Gain, Narrative, SourceLine, frozen_dataclass
from efprof.units import format_count, format_ms, format_share

ITERATOR = re.compile(r"^enumerate\(DataLoader\)#")
SINGLE_PROCESS = "_SingleProcessDataLoaderIter"
"""How torch names the iterator of a loader without workers."""
UNEVEN = 0.5
"""The median wait over the mean, below which a few steps wait for the others' batches too."""
MIN_SHARE, MIN_MS = 0.1, 1.0
"""A tenth of the step without work for the device is worth an edit; a millisecond may be the profiler's own."""
UNKNOWN = SourceLine(file="a DataLoader, by a line that was not recorded", function="__next__")


@frozen_dataclass
class TraceInput:
    """Milliseconds of each step inside the loader, and how many of them no device, if there is one, was busy."""

    window: TraceWindow
    data_ms: tuple[float, ...]
    lost_ms: tuple[float, ...]
    blame: SourceLine
    has_workers: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From the first readable trace; raises NotRecorded where there is none."""
        window = run.get(TimeUse).window
        fetches = [(start, end) for start, end, stage, _ in window.paths.stages if stage == "data"]
        gaps = [(gap.start_ns, gap.end_ns) for gap in window.gaps]
        data, idle, either = map(spans_of, (fetches, gaps, fetches + gaps))
        data_ns = [overlap_ns(data, *step) for step in window.steps]
        # What both cover is what each of them covers, less what at least one of them does.
        others_ns = [overlap_ns(idle, *step) - overlap_ns(either, *step) for step in window.steps]
        spent = Counter[str]()
        for start_ns, end_ns, stage, path in window.paths.stages:
            if stage == "data" and (asked := path.owner):  # around `__next__`: what is inside is the data set's
                spent[asked.text] += end_ns - start_ns
        return cls(
            window=window,
            data_ms=tuple(waited_ns / 1e6 for waited_ns in data_ns),
            lost_ms=tuple(sum(pair) / 1e6 for pair in zip(data_ns, others_ns, strict=True)),
            blame=run.get(Sources).line(spent.most_common(1)[0][0]) if spent else UNKNOWN,
            has_workers=SINGLE_PROCESS not in _longest(window, fetches),
        )

    @property
    def events(self) -> list[int]:
        """Those of the host inside the loader."""
        on_host, paths = np.flatnonzero(self.window.trace.is_of(*HOST)).tolist(), self.window.paths.of_event
        return [event for event in on_host if event in paths and paths[event].stage == "data"]

    @property
    def mean_ms(self) -> float:
        """Of all steps: a loader with several workers makes one step in so many wait for all the others."""
        return statistics.fmean(self.data_ms)

    @property
    def are_uneven(self) -> bool:
        return statistics.median(self.data_ms) < UNEVEN * self.mean_ms

    @property
    def bound(self) -> Gain:
        """What is known to be lost where the trace cannot be replayed."""
        why, lost_ms = "the time inside the loader in which the device had nothing to do", self.lost_ms
        interval = mean_interval(lost_ms) if len(lost_ms) > 1 else None
        return Gain.of_step(why, statistics.fmean(lost_ms), interval)

    def examination(self, replayed: Callable[[], tuple[Gain, str]]) -> Examination:
        """Whether the steps wait for their batches; a trace does not tell how many processors there are.

        `replayed` gives what is won without that, and why it is no replay where it is none; it is asked where the
        measured bound is worth an edit.
        """
        steps = format_count(len(self.data_ms), "step")
        share = format_share(self.mean_ms / (self.window.step_ms or 1.0))
        ends = f" ({format_ms(min(self.data_ms))} to {format_ms(max(self.data_ms))})" if self.are_uneven else ""
        looked_at = f"{steps} of a trace, {share} of the time inside the loader"
        if (self.bound.step_ms or 0.0) < max(MIN_MS, MIN_SHARE * self.window.step_ms):
            return Examination(looked_at=looked_at)
        gain, why_bound = replayed()
        how = "more of them" if self.has_workers else "`num_workers=2` or more, up to one for each free core"
        finding = Finding(
            blame=self.blame,
            category="time",
            headline="Training waits for its data",
            message=f"A step spends {format_ms(self.mean_ms)} inside the loader on average{ends}, {share} of its time.",
            why="The loader's `__next__` runs on the thread of the steps, which stops until a batch is ready.",
            fix=Fix.by_hand(f"Let worker processes make the batches: {how}, with pin_memory=True for a GPU."),
            gain=gain,
            evidence=(self._narrative(why_bound),),
        )
        return Examination(looked_at=looked_at, findings=(finding,))

    def _narrative(self, why_bound: str) -> Narrative:
        return Narrative.of(
            "The training asks for a batch and waits until it is there, whoever makes it.",
            f"Read from a trace of {len(self.window.steps)} steps: the time within the loader's `__next__` on the "
            f"thread of the steps, {format_ms(statistics.fmean(self.lost_ms))} of which no device was busy. "
            "The profiler slows a loader that runs in the training process itself, by Python functions most of all.",
            *filter(None, (why_bound,)),
        )


def _longest(window: TraceWindow, fetches: Sequence[tuple[int, int]]) -> str:
    """What the iterator that most of these go to is called; empty where none is named."""
    trace, spent = window.trace, Counter[str]()
    within = spans_of(fetches)
    for event in np.flatnonzero(trace.matches(ITERATOR)).tolist():
        spent[trace.text(event)] += overlap_ns(within, *trace.span(event))
    return max(spent, key=lambda name: spent[name], default="")
