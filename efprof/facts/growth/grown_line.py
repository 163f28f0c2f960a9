"""Which line takes longer in the last profiler window than in the first, and what else later steps have more of."""

import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, Self

from efprof.artifacts.steps import StepRecord
from efprof.facts.growth.kept_growth import KeptGrowth
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.slowdown import Part, Slowdown
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.path_tree import Line
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.model import Narrative, NotRecorded, SourceLine, frozen_dataclass

MIN_SHARE = 0.3
"""A line with less of the growth is one of several; no single one is at fault."""
MIN_FACTOR = 1.25
"""The growth of the whole step that is worth a finding; a line at fault, or the calls it makes, show it too."""
STANDING_OUT = 2.0
"""Where all stages grew alike, a line must have grown by twice as much as the step to be told from the machine."""
MIN_EXPLAINED = 0.5
"""Of the growth of the steps, by a line's own growth from step to step, or by what else a step has more of."""
MIN_LINE_SHARE = 0.02
"""Of the window: a shorter line says nothing about the machine."""
MIN_DISTANCE = 15
"""Steps between the windows: the first two of a usual run are 25 apart."""
MAX_NAMED = 4

OF_GRADIENTS = frozenset({"backward", "optimizer"})
"""The stages that take longer where more parameters are trained."""


class Spent(NamedTuple):
    """Own milliseconds, and calls, per step."""

    ms: float = 0.0
    calls: float = 0.0


@frozen_dataclass
class GrownLine:
    """The line (or function, outside of its lines) whose own time grew most in the stage that grew most.

    `early_ms` and `late_ms` are per step of the windows `early` and `late`; `share` is its part of all that grew in
    the stage between them. `runs` says what grew most of what it runs, `calls` how often a step of each window does.
    """

    blame: SourceLine
    runs: str
    calls: tuple[float, float]
    early: TraceWindow
    late: TraceWindow
    early_ms: float
    late_ms: float
    share: float

    @property
    def is_called_more(self) -> bool:
        return self.calls[1] > MIN_FACTOR * self.calls[0]

    def words(self) -> str:
        """What a step does more of: calls of it, or time in as many."""
        if self.is_called_more:
            return f"{self.runs} runs {self.calls[1]:,.0f} times a step instead of {self.calls[0]:,.0f}"
        return f"{self.runs} runs as often as before, but longer"

    def explains(self, slowdown: Slowdown) -> bool:
        """Whether it runs something ever more often, and grows fast enough for what the steps grew by."""
        per_step_ms = (self.late_ms - self.early_ms) / (self.late.middle - self.early.middle)
        is_called_more = self.calls[0] > 0 and self.is_called_more  # what is new may come now and then
        return is_called_more and per_step_ms >= MIN_EXPLAINED * slowdown.growth_per_step_ms


@frozen_dataclass
class GrownLines:
    """The line at fault; None, with the reason, where it is not known; `is_compared` where windows could tell."""

    line: GrownLine | None
    reason: str
    is_compared: bool = True

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Compare the earliest window that has the user's lines with the latest."""
        slowdown = run.get(Slowdown)
        try:
            windows = [window for window in run.get(TraceWindows).windows if window.lines]
            if len(windows) < 2 or windows[-1].middle - windows[0].middle < MIN_DISTANCE:
                raise NotRecorded("no two profiler windows lie far enough apart to compare their lines")
            early, late = windows[0], windows[-1]
            if slowdown.stage == "data" and not any(path.own_ns for path in late.walk() if path.stage == "data"):
                raise NotRecorded("a profiler window leaves out the fetch of data where that takes long")
        except NotRecorded as absent:
            return cls(line=None, reason=str(absent), is_compared=False)
        line = _fastest_growing(early, late, slowdown.stage, run.get(Sources))
        least = 1 + STANDING_OUT * (slowdown.ratio - 1) if slowdown.is_uniform else MIN_FACTOR
        # A busier machine slows all lines, as does longer data: those that are in both windows, and not short at first.
        before, after = (
            {key: sum(path.own_ns for path in paths) / window.num_steps for key, paths in window.lines.items()}
            for window in (early, late)
        )
        least_ns = MIN_LINE_SHARE * early.step_ms * 1e6
        factors = sorted(after[key] / ns for key, ns in before.items() if ns >= least_ns and key in after)
        if len(factors) > 1:
            least *= max(1.0, factors[len(factors) // 4])  # by which most grew more
        if line is None or line.share < MIN_SHARE or line.late_ms < least * line.early_ms:
            return cls(line=None, reason="no single line grew by enough between the profiler windows")
        return cls(line=line, reason="")


def why_it_grew(slowdown: Slowdown, lines: GrownLines) -> str:
    """In which stage, by what of which line, and how sure that is."""
    line = lines.line
    stage = "time between the stages" if slowdown.stage == "other" else f"{slowdown.stage} stage"
    if line is None:
        reason = lines.reason.removesuffix(".")
        return f"The {stage} grew most. Its line is not known ({reason}), or the batches became larger."
    doubt = "" if line.explains(slowdown) else ", unless the batches became larger"
    return f"The {stage} grew most, by one line: {line.words()}{doubt}."


def how_slowdown_is_known(slowdown: Slowdown, lines: GrownLines) -> Narrative:
    low, high = slowdown.ratio_interval
    known = (
        f"The blamed line has {lines.line.share:.0%} of what grew in the {slowdown.stage} stage between two profiler "
        "windows; time in deeper lines of the program is counted there, not here."
        if lines.line
        else f"The line is not known: {lines.reason.removesuffix('.')}. The line shown begins the stage that grew."
    )
    return Narrative.of(
        "The work of a step depends on how many steps came before it, so it goes on growing.",
        f"The time that 20 % of the steps stay below was compared between the thirds by a block bootstrap, since "
        f"steps that follow each other are alike: the ratio lies between {low:.2f} and {high:.2f} (95 %). {known}",
        "It is wrong where the later batches are larger, as in data sorted by length or a curriculum: samples, "
        "micro-batches and gradients tell of that as far as they were recorded, and of nothing "
        "that came after the last window. It is wrong too where the machine became busier for one kind of work only.",
    )


def longer_containers(run: Run) -> str:
    """A sentence of what was counted to get longer, and is not bounded; empty where nothing was."""
    grown, sources, found = run.find(KeptGrowth), run.get(Sources), []
    for one in (*grown.holders, *grown.containers) if grown else ():
        if one.entries_added > 0 and one.verdict != "bounded":
            first, last = one.sizes[0], one.sizes[-1]
            at = f" at {sources.line(one.site)}" if one.site else ""
            lengths = f"{first.length:,} entries after step {first.step:,}, {last.length:,} after step {last.step:,}"
            found.append(f"`{one.name}`{at} ({lengths})")
    names = ", ".join(found[:MAX_NAMED])
    return f" Meanwhile {names} got longer: bound that, or keep a running value." if found else ""


def larger_steps(run: Run) -> str:
    """In words what grew as the steps got longer; empty where nothing that was recorded did."""
    slowdown = run.get(Slowdown)
    least = 1 + MIN_EXPLAINED * (slowdown.ratio - 1)
    counted: list[tuple[str, Callable[[StepRecord], int | None]]] = [
        ("samples", lambda record: record.samples),
        ("micro-batches", lambda record: record.micro_batches),
        ("elements in its batch", lambda record: record.num_elements),
    ]
    if slowdown.stage in OF_GRADIENTS:  # as where one layer after the other is unfrozen
        counted.append(("gradients", lambda record: record.num_gradients))
    for name, of in counted:
        before, after = (_usual(run, part, of) for part in (slowdown.early, slowdown.late))
        if before and after >= least * before:
            return f"a step has {after:,.0f} {name} there instead of {before:,.0f}"
    return ""


def _fastest_growing(early: TraceWindow, late: TraceWindow, stage: str, sources: Sources) -> GrownLine | None:
    before, after = (_spent(window, stage) for window in (early, late))
    by_line = defaultdict[Line, list[str]](list)
    for line, runs in before | after:
        if line in late.lines:
            by_line[line].append(runs)
    grown_ms = {key: after[key].ms - before[key].ms for key in before | after}
    grown = {line: sum(grown_ms[line, runs] for runs in every) for line, every in sorted(by_line.items())}
    total_ms = sum(ms for ms in grown.values() if ms > 0)
    if not total_ms:
        return None
    most = max(grown, key=lambda line: grown[line])
    runs = max(by_line[most], key=lambda runs: grown_ms[most, runs])
    return GrownLine(
        blame=sources.line(late.lines[most][0].text),
        runs=f"`{runs}`" if runs else "Python in it" if most[0] == "function" else "what it calls",
        calls=(before[most, runs].calls, after[most, runs].calls),
        early=early,
        late=late,
        early_ms=sum(before[most, each].ms for each in by_line[most]),
        late_ms=sum(after[most, each].ms for each in by_line[most]),
        share=grown[most] / total_ms,
    )


def _spent(window: TraceWindow, stage: str) -> dict[tuple[Line, str], Spent]:
    """In the stage, by line and what it runs."""
    found = defaultdict[tuple[Line, str], Spent](Spent)
    num_steps = window.num_steps
    for line, path in ((line, path) for line, paths in window.lines.items() for path in paths if path.stage == stage):
        key = line, "" if path.kind in ("line", "function") else path.text
        ms, calls = found[key]
        found[key] = Spent(ms + path.own_ns / 1e6 / num_steps, calls + path.count / num_steps)
    return found


def _usual(run: Run, part: Part, of: Callable[[StepRecord], int | None]) -> float:
    """What the steps of a part had; one in which it was not counted has as many as the last that was."""
    known, found = 0, []
    for time in run.get(StepTimes).every:
        known = of(time.record) or known
        if part.first_step <= time.step <= part.last_step:
            found.append(known)
    return statistics.median(found)
