"""Which line of the user's code makes later steps longer, or what else the later ones have more of."""

import ast
import contextlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import StepRecord
from efprof.facts.growth.kept_growth import lengthened
from efprof.facts.peak.live_memory import LiveMemory, LiveWindow, sites_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, name_of, placed_nodes
from efprof.facts.steps.slowdown import Part, Slowdown
from efprof.facts.steps.step_times import StepTimes, part_of_steps
from efprof.facts.time.line_times import LineTime, LineTimes, LineWindow
from efprof.model import STAGES, Evidence, Narrative, NotRecorded, SourceLine, Table
from efprof.units import format_ms, format_value

MIN_SHARE = 0.3
"""A line with less of the growth is one of several; no single one is at fault."""
MIN_FACTOR = 1.25
"""The growth of the whole step that is worth a finding; a line at fault shows it too."""
STANDING_OUT = 2.0
"""Where all stages grew alike, a line must have grown by twice as much as the step to be told from the machine."""
MIN_EXPLAINED = 0.5
"""Of the growth of the steps, by a line's own growth from step to step, or by what else a step has more of."""
MIN_LINE_SHARE = 0.02
"""Of the window: a shorter line says nothing about the machine, and one with fewer bytes may have them by chance."""
MIN_DISTANCE = 15
"""Steps between the windows: the first two of a usual run are 25 apart."""

OF_GRADIENTS = frozenset({"backward", "optimizer"})
"""The stages that take longer where more parameters are trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowingContainer:
    """A container that a line goes through, where it was seen to get longer, and its length in the earliest window."""

    name: str
    grown_at: SourceLine | None
    early_length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowdownLine:
    """The line (or function, outside of its calls) whose own time grew most in the stage that grew most.

    `blame` is that line; in a function, the loop through a container that gets longer, or else its first line.
    `early_ms` and `late_ms` are its milliseconds per step in the windows `early` and `late`; `share` is its part of
    all that grew in the stage between them. `others` are the lines that grew next to it, most first.
    """

    time: LineTime
    blame: SourceLine
    early: LineWindow
    late: LineWindow
    early_ms: float
    late_ms: float
    share: float
    container: GrowingContainer | None
    others: tuple[tuple[LineTime, float, float], ...]

    def explains(self, slowdown: Slowdown) -> bool:
        """Whether it goes through a container that gets longer, and grows fast enough for what the steps grew by."""
        per_step_ms = (self.late_ms - self.early_ms) / (self.late.middle - self.early.middle)
        return self.container is not None and per_step_ms >= MIN_EXPLAINED * slowdown.growth_per_step_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowdownLines:
    """The line at fault; None, with the reason, where it is not known; `is_compared` where windows could tell."""

    line: SlowdownLine | None
    reason: str
    is_compared: bool = True

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Compare the earliest window with the latest."""
        slowdown = run.get(Slowdown)
        try:
            windows = run.get(LineTimes).windows
        except NotRecorded as absent:
            return cls(line=None, reason=str(absent), is_compared=False)
        if len(windows) < 2 or windows[-1].middle - windows[0].middle < MIN_DISTANCE:
            reason = "no two profiler windows lie far enough apart to compare their lines"
            return cls(line=None, reason=reason, is_compared=False)
        if slowdown.stage == "data" and not any(time.own_ms.get("data") for time in windows[-1].lines.values()):
            reason = "a profiler window leaves out the fetch of data where that takes long"
            return cls(line=None, reason=reason, is_compared=False)
        line = _fastest_growing(windows[0], windows[-1], slowdown.stage, run)
        least = 1 + STANDING_OUT * (slowdown.ratio - 1) if slowdown.is_uniform else MIN_FACTOR
        least *= max(1.0, _machine_factor(windows[0], windows[-1]))
        if line is None or line.share < MIN_SHARE or line.late_ms < least * line.early_ms:
            return cls(line=None, reason="no single line grew by enough between the profiler windows")
        return cls(line=line, reason="")


def slowdown_evidence(times: StepTimes, slowdown: Slowdown, lines: SlowdownLines) -> tuple[Evidence, ...]:
    """All of it, the picture first."""
    marks = (
        (float(slowdown.early.last_step), "end of the first third"),
        (float(slowdown.late.first_step), "start of the last third"),
    )
    return (
        part_of_steps(times, slowdown.stage, [time.of(slowdown.stage) for time in times.steady], marks),
        _stage_table(slowdown),
        *((_line_table(slowdown, lines.line),) if lines.line else ()),
        _meaning(slowdown, lines),
    )


def slowdown_message(slowdown: Slowdown, lines: SlowdownLines) -> str:
    """How much longer a step takes, in which stage, by which line, and how sure that is."""
    early, late, line = slowdown.early, slowdown.late, lines.line
    took = f"A step takes {format_ms(early.typical_ms)} in steps {early.first_step} to {early.last_step} and "
    took += f"{format_ms(late.typical_ms)} in steps {late.first_step} to {late.last_step}; the {slowdown.stage} "
    took += "stage grew most"
    if line is None:
        reason = lines.reason.removesuffix(".")
        return f"{took}; which line makes it grow is not known ({reason}), or the steps themselves became larger."
    through = f", which goes through `{line.container.name}`" if line.container else ""
    doubt = "" if line.explains(slowdown) else ", unless the steps themselves became larger"
    return f"{took}, by this line{through}{doubt}."


def larger_steps(run: Run) -> str:
    """In words what grew as the steps got longer; empty where nothing that was recorded did."""
    slowdown = run.get(Slowdown)
    least = 1 + MIN_EXPLAINED * (slowdown.ratio - 1)
    counted: list[tuple[str, Callable[[StepRecord], int | None]]] = [
        ("samples", lambda record: record.samples),
        ("micro-batches", lambda record: record.micro_batches),
    ]
    if slowdown.stage in OF_GRADIENTS:  # as where one layer after the other is unfrozen
        counted += [
            ("gradients", lambda record: record.num_gradients),
            ("bytes of gradients", lambda record: record.gradient_bytes),
        ]
    for name, of in counted:
        before, after = (_usual(run, part, of) for part in (slowdown.early, slowdown.late))
        if before and after >= least * before:
            return f"a step has {after:,.0f} {name} there instead of {before:,.0f}"
    factor = _allocated_growth(run)
    if factor < least:
        return ""
    return f"the lines of the forward pass allocate {format_value(factor, 'ratio')} as much there, as for longer data"


def _machine_factor(early: LineWindow, late: LineWindow) -> float:
    """By how much a line grew that most lines grew more than: what became busier is the machine, not the program."""
    factors = []
    for place, time in early.lines.items():
        early_ms = sum(time.own_ms.values())
        if place in late.lines and early_ms >= MIN_LINE_SHARE * early.step_ms:
            factors.append(sum(late.lines[place].own_ms.values()) / early_ms)
    factors.sort()
    return factors[len(factors) // 4] if len(factors) > 1 else 1.0


def _fastest_growing(early: LineWindow, late: LineWindow, stage: str, run: Run) -> SlowdownLine | None:
    rows = [
        (time, _own_ms(early, place, stage), _own_ms(late, place, stage)) for place, time in sorted(late.lines.items())
    ]
    grown = sorted((row for row in rows if row[2] > row[1]), key=lambda row: row[1] - row[2])
    if not grown:
        return None
    time, early_ms, late_ms = grown[0]
    total_ms = sum(after - before for _, before, after in grown)
    blame, container = _with_container(time, early, run)
    return SlowdownLine(
        time=time,
        blame=blame,
        early=early,
        late=late,
        early_ms=early_ms,
        late_ms=late_ms,
        share=(late_ms - early_ms) / total_ms,
        container=container,
        others=tuple(grown[1:4]),
    )


def _own_ms(window: LineWindow, place: str, stage: str) -> float:
    time = window.lines.get(place)
    return time.own_ms.get(stage, 0.0) if time else 0.0


def _with_container(time: LineTime, early: LineWindow, run: Run) -> tuple[SourceLine, GrowingContainer | None]:
    """The line to blame, and the container it goes through."""
    if not time.is_function:
        return time.blame, _container(time.blame, early, run)
    sources, file, function = run.get(Sources), time.blame.file, time.blame.function
    tree = sources.tree(file)
    first = time.blame.line
    for placed in placed_nodes(tree) if tree else ():
        match placed.node:
            case (
                ast.For(lineno=line)
                | ast.ListComp(lineno=line)
                | ast.SetComp(lineno=line)
                | ast.DictComp(lineno=line)
                | ast.Compare(lineno=line, ops=[ast.In() | ast.NotIn()])
            ) if placed.function == function:
                blame = sources.line(f"{file}:{line}:{function}")
                container = _container(blame, early, run)
                if container is not None:
                    return blame, container
            case ast.FunctionDef(name=name) as node if placed.qualified_name(name) == function:
                first = node.lineno
    return sources.line(f"{file}:{first}:{function}"), None


def _container(blame: SourceLine, early: LineWindow, run: Run) -> GrowingContainer | None:
    """A container that the line names and that was counted to grow."""
    sources = run.get(Sources)
    tree = sources.tree(blame.file)
    for name in _names_on(tree, blame.line) if tree else ():
        kept = lengthened(run, name)
        if kept is not None:
            grown_at, first = sources.line(kept.site) if kept.site else None, kept.sizes[0]
            early_length = first.length - kept.entries_added / kept.num_steps * (first.step - early.middle)
            return GrowingContainer(name=name, grown_at=grown_at, early_length=max(1, round(early_length)))
    return None


def _names_on(tree: ast.Module, line: int) -> list[str]:
    """The variables and attributes that are read on a line, in the order they are written."""
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and node.lineno == line and isinstance(node.ctx, ast.Load)
    ]
    nodes.sort(key=lambda node: (node.end_col_offset or 0, node.col_offset))
    return list(dict.fromkeys(name for node in nodes if (name := name_of(node))))


def _stage_table(slowdown: Slowdown) -> Table:
    early, late = slowdown.early, slowdown.late
    stages = sorted(STAGES, key=slowdown.stage_growth_ms, reverse=True)
    rows = [(stage, early.stage_ms[stage], late.stage_ms[stage]) for stage in stages]
    rows.append(("whole step", early.typical_ms, late.typical_ms))
    return _growth_table("Stages, per typical step", "stage", early, late, rows)


def _line_table(slowdown: Slowdown, line: SlowdownLine) -> Table:
    grown = ((line.time, line.early_ms, line.late_ms), *line.others)
    rows = [(_name_of(time), early_ms, late_ms) for time, early_ms, late_ms in grown]
    title = f"Lines that grew in the {slowdown.stage} stage, per step under the profiler"
    return _growth_table(title, "line", line.early, line.late, rows)


def _name_of(time: LineTime) -> str:
    return f"{time.blame.function}, outside of its calls" if time.is_function else f"{time.blame}  {time.blame.text}"


def _growth_table(
    title: str, what: str, early: Part | LineWindow, late: Part | LineWindow, rows: Iterable[tuple[str, float, float]]
) -> Table:
    return Table(
        title=title,
        columns=(
            what,
            f"steps {early.first_step} to {early.last_step}",
            f"steps {late.first_step} to {late.last_step}",
            "growth",
        ),
        units=("", "ms", "ms", "ms"),
        rows=tuple((name, early_ms, late_ms, late_ms - early_ms) for name, early_ms, late_ms in rows),
    )


def _meaning(slowdown: Slowdown, lines: SlowdownLines) -> Narrative:
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
        "micro-batches, gradients and allocation windows tell of that as far as they were recorded, and of nothing "
        "that came after the last window. It is wrong too where the machine became busier for one kind of work only.",
    )


def _usual(run: Run, part: Part, of: Callable[[StepRecord], int | None]) -> float:
    """What the steps of a part had; one in which it was not counted has as many as the last that was."""
    known, found = 0, []
    for time in run.get(StepTimes).every:
        known = of(time.record) or known
        if part.first_step <= time.step <= part.last_step:
            found.append(known)
    return statistics.median(found)


def _allocated_growth(run: Run) -> float:
    """By how much the bytes of most forward lines grew from the first window to the last.

    What keeps more with every step makes a line or two allocate more; longer data does it to all of them.
    """
    with contextlib.suppress(NotRecorded):
        windows = run.get(LiveMemory).windows
        early, late = (_forward_bytes(window, run.get(Sources)) for window in (windows[0], windows[-1]))
        least = MIN_LINE_SHARE * early.total()
        both = [site for site, num_bytes in early.items() if num_bytes >= least and site in late]
        factors = sorted(late[site] / early[site] for site in both)
        if len(factors) > 1:
            return factors[len(factors) // 4]
    return 1.0


def _forward_bytes(window: LiveWindow, sources: Sources) -> Counter[str]:
    """What each of the user's lines allocates in the forward pass of a step."""
    stretches = [stretch for stretch in window.stretches if stretch.stage == "forward"]
    num_steps = len({stretch.step for stretch in stretches})
    sites, sizes = sites_of(window, sources), Counter[str]()
    for stretch in stretches:
        for index in range(stretch.first, stretch.end):
            site = sites[index]
            if site is not None and window.events[index].num_bytes > 0:
                sizes[site] += window.events[index].num_bytes
    return Counter({site: size // num_steps for site, size in sizes.items() if size >= num_steps})
