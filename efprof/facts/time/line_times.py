"""How long each line of the user's code took in each profiler window, and in which stage of the step.

A window's Python calls carry the line they were made from. A line's own time is that of the calls made from it, less
the part spent deeper in the user's code. What a user's function spends outside of its calls (tensor operators, plain
Python) has no line: it is the own time of the function. Own times add up, so the line or function whose own time grew
is the one at fault.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Final, Self

from efprof.artifacts.trace import Trace, TraceEvent, read_trace, trace_paths
from efprof.facts.run.run import Run
from efprof.facts.source.sources import COMPREHENSION, Sources, place_of
from efprof.facts.steps.step_times import StepTime, StepTimes
from efprof.model import SourceLine

PYTHON_CALL = "python_function"
BETWEEN_STAGES = "other"
STAGE_CALLS: Final = {
    "data": re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$"),
    "forward": re.compile(r"^nn\.Module: "),
    "backward": re.compile(r"torch/(_tensor|autograd/__init__)\.py\(\d+\): backward$"),
    "optimizer": re.compile(r"torch/optim/optimizer\.py\(\d+\): (wrapper|step)$"),
}
"""The calls that begin a stage, the outermost of them, as torch's profiler names them; clocks need not agree for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineTime:
    """One line or function in one window, in milliseconds per step; `own_ms` is by stage.

    `is_function` says that it is a function's time outside of its calls; `blame` is then some line of it.
    """

    blame: SourceLine
    is_function: bool
    own_ms: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class LineWindow:
    """One window: its steps, slowed by the profiler, and the time of every user line and function in them.

    `lines` is by `file:line`, and by `file:function()` for functions.
    """

    first_step: int
    last_step: int
    step_ms: float
    lines: dict[str, LineTime]

    @property
    def middle(self) -> float:
        """The step in the middle."""
        return (self.first_step + self.last_step) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LineTimes:
    """The windows that hold at least one step, earliest first."""

    windows: tuple[LineWindow, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read every trace; raises NotRecorded where there is none."""
        sources, times = run.get(Sources), run.get(StepTimes)
        windows = []
        for path in trace_paths(run.rank_folder):
            name = path.name.split(".")[0]
            steps = [time for time in times.every if time.record.window == name]
            if steps:
                windows.append(_window(steps, read_trace(path), sources))
        return cls(windows=tuple(windows))


@dataclass(slots=True)
class _Sum:
    """What was added up for one line or function, by stage; `site` is that of its first call."""

    site: str
    is_function: bool
    own_ns: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _OpenCall:
    """A call that has not returned; `owner` has what it spends outside of deeper calls."""

    owner: _Sum
    stage: str
    end_ns: int


def _window(steps: list[StepTime], trace: Trace, sources: Sources) -> LineWindow:
    num_steps = len(steps)
    sums = _WindowSums(sources)
    # Sorting is stable: within a thread the calls stay in order of their start, outer before inner.
    calls = sorted(_calls_within(trace.events, steps), key=lambda call: str(call.thread))
    for _, in_thread in groupby(calls, key=lambda call: str(call.thread)):
        sums.add_thread(in_thread)
    return LineWindow(
        first_step=steps[0].step,
        last_step=steps[-1].step,
        step_ms=sum(time.total_ms for time in steps) / num_steps,
        lines={
            place: LineTime(
                blame=sources.line(total.site),
                is_function=total.is_function,
                own_ms={stage: spent / 1e6 / num_steps for stage, spent in total.own_ns.items()},
            )
            for place, total in sums.by_place.items()
        },
    )


def _calls_within(events: Iterable[TraceEvent], steps: list[StepTime]) -> Iterator[TraceEvent]:
    """Python calls that overlap the window's steps: a profiler also records how it is started and stopped."""
    start_ns = steps[0].record.started_ns
    end_ns = steps[-1].record.started_ns + round(steps[-1].total_ms * 1e6)
    for event in events:
        if event.category == PYTHON_CALL and event.start_ns < end_ns and event.end_ns > start_ns:
            yield event


class _WindowSums:
    """Adds up the calls of a window, thread by thread."""

    def __init__(self, sources: Sources) -> None:
        self.by_place: dict[str, _Sum] = {}
        self._sources = sources
        self._function_site = cache(self._find_function_site)

    def add_thread(self, calls: Iterable[TraceEvent]) -> None:
        """Walk the calls of one thread, outer before inner."""
        open_calls: list[_OpenCall] = []
        for event in calls:
            while open_calls and open_calls[-1].end_ns <= event.start_ns:
                open_calls.pop()
            outer = open_calls[-1] if open_calls else None
            call = self._open(event, outer)
            if call is None:
                continue
            if outer is not None:
                # An inner call cannot outlast its outer one; a trace rounds times so that it can seem to.
                outer.owner.own_ns[outer.stage] -= min(event.end_ns, outer.end_ns) - event.start_ns
            call.owner.own_ns[call.stage] += event.duration_ns
            open_calls.append(call)

    def _open(self, event: TraceEvent, outer: _OpenCall | None) -> _OpenCall | None:
        """A call that the user made, that runs the user's code, or that begins a stage; None for any other."""
        site, function_site = event.arguments.call_site, self._function_site(event.name)
        is_made_by_user = site is not None and self._sources.is_user_code(site)
        begun = _stage_begun_by(event.name)
        if not is_made_by_user and function_site is None and (begun is None or outer is None):
            return None
        made_at = self._sum(site, is_function=False) if site and is_made_by_user else None
        function = self._sum(function_site, is_function=True) if function_site else None
        owner = function or made_at or (outer.owner if outer else None)
        assert owner is not None
        stage = outer.stage if outer is not None and outer.stage != BETWEEN_STAGES else begun or BETWEEN_STAGES
        return _OpenCall(owner=owner, stage=stage, end_ns=event.end_ns)

    def _sum(self, site: str, *, is_function: bool) -> _Sum:
        place = f"{site.partition(':')[0]}:{self._sources.line(site).function}()" if is_function else place_of(site)
        if place not in self.by_place:
            self.by_place[place] = _Sum(site=site, is_function=is_function)
        return self.by_place[place]

    def _find_function_site(self, name: str) -> str | None:
        """A site in the user's function that a call is named after; None for a library's.

        A comprehension's frame belongs to the line it is written in, which its call site names.
        """
        sites = self._sources.sites_of_frame(name)
        return next((site for site in sites if not COMPREHENSION.search(site)), None)


@cache
def _stage_begun_by(name: str) -> str | None:
    return next((stage for stage, pattern in STAGE_CALLS.items() if pattern.search(name)), None)
