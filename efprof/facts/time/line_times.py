"""How long each line of the user's code took in each profiler window, and in which stage of the step.

A line's own time is that of the calls made from it, less the part spent deeper in the user's code, and that of the
backward operators of what it computed. What a user's function spends outside of its calls (tensor operators, plain
Python) has no line: it is the own time of the function. Own times add up, so the line or function whose own time grew
is the one at fault.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of, split_site
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.model import SourceLine


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
        sources = run.get(Sources)
        return cls(windows=tuple(_line_window(window, sources) for window in run.get(TraceWindows).windows))


@dataclass(slots=True)
class LineSpent:
    """What was added up for one line or function in nanoseconds, by stage; `site` is that of its first path."""

    site: str
    is_function: bool
    own_ns: Counter[str] = field(default_factory=Counter)
    device_ns: int = 0


def spent_by_line(window: TraceWindow, sources: Sources) -> dict[str, LineSpent]:
    """By `file:line`, and by `file:function()`, what is each path's innermost one."""
    spent: dict[str, LineSpent] = {}
    for path in window.paths.root.walk():
        owner = path.nearest("line", "function")
        if owner is None:
            continue
        is_function = owner.kind == "function"
        file = split_site(owner.text)[0]
        place = f"{file}:{sources.line(owner.text).function}()" if is_function else place_of(owner.text)
        found = spent.setdefault(place, LineSpent(site=owner.text, is_function=is_function))
        found.device_ns += path.device_ns
        if path.own_ns:
            found.own_ns[path.stage] += path.own_ns
    return spent


def _line_window(window: TraceWindow, sources: Sources) -> LineWindow:
    num_steps = len(window.steps)
    return LineWindow(
        first_step=window.numbers[0],
        last_step=window.numbers[-1],
        step_ms=window.step_ms,
        lines={
            place: LineTime(
                blame=sources.line(found.site),
                is_function=found.is_function,
                own_ms={stage: spent / 1e6 / num_steps for stage, spent in found.own_ns.items()},
            )
            for place, found in spent_by_line(window, sources).items()
        },
    )
