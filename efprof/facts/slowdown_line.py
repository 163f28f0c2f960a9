"""Which line of the user's code makes later steps longer: what grew from the earliest profiler window to the latest."""

import ast
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.holders import read_censuses
from efprof.facts.growing_statements import growing_statements
from efprof.facts.line_times import LineTime, LineTimes, LineWindow
from efprof.facts.run import Run
from efprof.facts.slowdown import Slowdown
from efprof.facts.sources import Sources
from efprof.facts.syntax import name_of, placed_nodes
from efprof.model import NotRecorded, SourceLine

LEAST_SHARE = 0.3
"""A line with less of the growth is one of several; no single one is at fault."""
LEAST_FACTOR = 1.25
"""The growth of the whole step that is worth a finding; a line at fault shows it too."""
STANDING_OUT = 2.0
"""Where all stages grew alike, a line must have grown by twice as much as the step to be told from the machine."""
LEAST_DISTANCE = 15
"""Steps between the windows: the first two of a usual run are 25 apart."""
LENGTHENING = frozenset({"append", "appendleft", "extend", "extendleft", "insert"})
"""Methods that only containers have and that never replace what they hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowingContainer:
    """A container that a line goes through, where it gets longer, and its length in the earliest window if counted."""

    name: str
    grown_at: SourceLine | None
    early_length: int | None


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


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowdownLines:
    """The line at fault; None, with the reason, where it is not known."""

    line: SlowdownLine | None
    reason: str

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Compare the earliest window with the latest."""
        slowdown = run.get(Slowdown)
        try:
            windows = run.get(LineTimes).windows
        except NotRecorded as absent:
            return cls(line=None, reason=str(absent))
        if len(windows) < 2 or windows[-1].middle - windows[0].middle < LEAST_DISTANCE:
            return cls(line=None, reason="no two profiler windows lie far enough apart to compare their lines")
        line = _fastest_growing(windows[0], windows[-1], slowdown.stage, run)
        if line is None or line.share < LEAST_SHARE or line.late_ms < _least_factor(slowdown) * line.early_ms:
            return cls(line=None, reason="no single line grew by enough between the profiler windows")
        return cls(line=line, reason="")


def _least_factor(slowdown: Slowdown) -> float:
    return 1 + STANDING_OUT * (slowdown.ratio - 1) if slowdown.is_uniform else LEAST_FACTOR


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
            case ast.For(lineno=line) if placed.function == function:
                blame = sources.line(f"{file}:{line}:{function}")
                container = _container(blame, early, run)
                if container is not None:
                    return blame, container
            case ast.FunctionDef(name=name) as node if placed.qualified_name(name) == function:
                first = node.lineno
    return sources.line(f"{file}:{first}:{function}"), None


def _container(blame: SourceLine, early: LineWindow, run: Run) -> GrowingContainer | None:
    """A growing container that the line names: one that a census counted, else one appended to in the same file."""
    sources = run.get(Sources)
    tree = sources.tree(blame.file)
    if tree is None:
        return None
    known = []
    for name in _names_on(tree, blame.line):
        statements = growing_statements(tree, blame.file, name)
        lengthening = (each for each in statements if each.kind in LENGTHENING and each.line != blame.line)
        grown_at = next((sources.line(statement.site) for statement in lengthening), None)
        length = _early_length(name, early, run)
        if length is not None or grown_at is not None:
            known.append(GrowingContainer(name=name, grown_at=grown_at, early_length=length))
    return min(known, key=lambda container: container.early_length is None, default=None)


def _names_on(tree: ast.Module, line: int) -> list[str]:
    """The variables and attributes that are read on a line, in the order they are written."""
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and node.lineno == line and isinstance(node.ctx, ast.Load)
    ]
    nodes.sort(key=lambda node: (node.end_col_offset or 0, node.col_offset))
    return list(dict.fromkeys(name for node in nodes if (name := name_of(node))))


def _early_length(name: str, early: LineWindow, run: Run) -> int | None:
    """The length in the early window of a container that the last census saw grow."""
    try:
        census = read_censuses(run.rank_folder)[-1]
    except NotRecorded:
        return None
    for holder in census.holders:
        if holder.name == name and holder.length_after > holder.length_before:
            per_step = (holder.length_after - holder.length_before) / max(1, census.step_after - census.step_before)
            return max(1, round(holder.length_before - per_step * (census.step_before - early.middle)))
    return None
