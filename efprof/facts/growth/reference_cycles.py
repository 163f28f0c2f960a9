"""Garbage in reference cycles: how high it piles up between collections, and which statement closes a cycle.

That is the one that refers back to what was there before.
"""

import ast
import statistics
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self

from efprof.artifacts.holders import CollectedGarbage, Cycle, CycleLink, LargeCollection, read_cycles
from efprof.artifacts.steps import read_steps
from efprof.facts.run.run import Run
from efprof.facts.source.sources import PlacedNode, Sources, definition_of, name_of, placed_nodes
from efprof.model import Gain, Narrative, SourceLine
from efprof.units import MIB, format_bytes

COMPARABLE = 0.5
"""Of the most that a collection freed: smaller ones are of young objects only, or came early by chance."""

MIN_COLLECTIONS = 3
"""One frees what the program's start has left, and two may be chance; where the cycle was found, one is enough."""
MAX_OF_MEMORY, MIN_OF_THESE = 0.5, 2
"""Of all that was allocated: what frees that much twice is no chance. Short steps have few collections: 300 with a
cycle each of 2 MiB had two that freed 67 and 69 %, and none looked at in time to find the cycle (measured)."""
MIN_STEPS_APART = 4
"""What is collected sooner, as by `gc.collect()` in every step, has no time to pile up."""
MIN_BYTES, MIN_SHARE = 16 * MIB, 0.1
"""What the largest collection freed, at least, and its share of the run's peak. Not one of 19 collections in thirteen
healthy programs of the tests freed a tenth of a MiB (measured): less than this is real, and not worth a finding."""
LOWEST = 3
"""Levels after a collection whose median is taken: one alone may have come at a moment when a step needs little."""

Value = Literal["self", "back", "named", "made"]
"""What is stored: the object itself, something else that was there before (what the function was given, a caught error,
a method, a function that is defined here), what has a name, or what is made just then: it hangs below."""
_LIKELIHOOD: tuple[Value, ...] = ("self", "back", "named", "made")


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleSawtooth:
    """The comparable large collections, the median steps between them (0 without), and the run's peak as read."""

    garbage: CollectedGarbage
    teeth: tuple[LargeCollection, ...]
    steps_apart: float
    peak_bytes: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where collections were not watched."""
        garbage, records = read_cycles(run.rank_folder), read_steps(run.rank_folder)[0]
        most = max((each.freed_bytes for each in garbage.collections), default=0)
        large = [each for each in garbage.collections if each.freed_bytes >= COMPARABLE * most]
        starts = [record.started_ns for record in records]
        places = [bisect_right(starts, each.at_ns) - 1 for each in large]
        steps = [records[place].step if place >= 0 else 0 for place in places]
        read = [here.allocated_bytes for record in records if record.window is None for here in record.memory]
        apart = [later - step for step, later in pairwise([0, *steps])]
        return cls(
            garbage=garbage,
            teeth=tuple(large),
            steps_apart=statistics.median(apart) if apart else 0.0,
            peak_bytes=max([*read, *(each.before_bytes for each in large)], default=0),
        )

    @property
    def piles_up(self) -> bool:
        """Whether much garbage waits for the collector again and again."""
        largest = [tooth for tooth in self.teeth if tooth.freed_bytes >= MAX_OF_MEMORY * tooth.before_bytes]
        is_repeated = len(self.teeth) >= MIN_COLLECTIONS or len(largest) >= MIN_OF_THESE
        if not self.teeth or not (self.garbage.cycles or is_repeated) or self.steps_apart < MIN_STEPS_APART:
            return False
        return self.height_interval[0] >= max(MIN_BYTES, MIN_SHARE * self.peak_bytes)

    @property
    def height_bytes(self) -> int:
        """From the lowest that collections left to the most that one found; only where there are teeth.

        A collection of young objects leaves the garbage that had grown older, so that the level rises until an older
        generation's turn; the lowest ones are nearest to what a program without garbage has.
        """
        low, high = self.height_interval
        lowest = statistics.median(sorted(map(_left, self.teeth))[:LOWEST])
        return round(min(high, max(low, high + min(map(_left, self.teeth)) - lowest)))

    @property
    def height_interval(self) -> tuple[float, float]:
        """From the most that one collection freed, to the highest less the lowest, whatever the step did just then."""
        high = max(tooth.before_bytes for tooth in self.teeth) - min(map(_left, self.teeth))
        return float(max(tooth.freed_bytes for tooth in self.teeth)), float(high)


def cycle_gain(sawtooth: CycleSawtooth) -> Gain:
    """What lay there as garbage when most did; another run's collections come at other steps."""
    least = min(tooth.freed_bytes for tooth in sawtooth.teeth)
    one_step = sawtooth.height_bytes / sawtooth.steps_apart
    _, high = sawtooth.height_interval
    return Gain(
        basis="measured bound",
        explanation="the most that was allocated when a collection began, less the lowest that collections left; its "
        "interval goes from what the least of the comparable collections freed to the highest less the lowest, and "
        "one step's garbage farther at both ends, as another run's collections come at other moments",
        peak_bytes=sawtooth.height_bytes,
        peak_bytes_interval=(max(0.0, least - one_step), high + one_step),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosingStatement:
    """A statement that makes `link`; `value` is the expression it stores, None where it defines a function or a field.

    `is_elsewhere` where it stands in another class than the one that the names belong to.
    """

    file: str
    line: int
    function: str
    link: CycleLink
    kind: Value
    value: ast.expr | None
    is_elsewhere: bool

    @property
    def rank(self) -> tuple[bool, int, str, int]:
        """Smaller is likelier; of two alike the later one closes the cycle."""
        return self.is_elsewhere, _LIKELIHOOD.index(self.kind), self.file, -self.line


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedCycle:
    """A cycle, the line to blame for it, and the statements that could close it, likeliest first."""

    cycle: Cycle
    blame: SourceLine
    statements: tuple[ClosingStatement, ...]


def closed_cycle(run: Run) -> ClosedCycle | None:
    """Of the cycles that a line of the user's was found for, that with most bytes; raises NotRecorded."""
    sources = run.get(Sources)
    found = (_closed(cycle, sources) for cycle in read_cycles(run.rank_folder).cycles)
    return next((closed for closed in found if closed is not None), None)


def how_the_cycle_is_known(closed: ClosedCycle | None) -> Narrative:
    line = "What the circle is was not found among the user's classes, so the line is the one that runs backward."
    if closed is not None:
        others, cycle = ", ".join(f"{each.file}:{each.line}" for each in closed.statements[1:4]), closed.cycle
        line = (
            f"{cycle.count:,} such circles, each with {cycle.tensors:,} tensors of {format_bytes(cycle.tensor_bytes)}, "
            "were found in the garbage of a moment, and the line in the sources: it is the likeliest of those that "
            f"make a part of one{f' (others: {others})' if others else ''}."
        )
    return Narrative.of(
        "Python frees an object at once when nothing refers to it. Objects that refer to each other in a circle "
        "keep each other, and the tensors behind them, until its collector comes by; that goes by the number of "
        "objects, not by the memory that they hold.",
        f"Allocated memory was read when a collection began and when it ended. {line}",
        "Where the program frees these cycles at set steps by `gc.collect()` because it wants them, the memory "
        "between is what that costs.",
    )


def _left(tooth: LargeCollection) -> int:
    return tooth.before_bytes - tooth.freed_bytes


def _closed(cycle: Cycle, sources: Sources) -> ClosedCycle | None:
    placed = [(file, one) for file in sources.files for one in placed_nodes(sources.tree(file))]
    statements = sorted(_statements(cycle, placed), key=lambda statement: statement.rank)
    blame = next((sources.line(f"{one.file}:{one.line}:{one.function}") for one in statements), None)
    for link in cycle.links:
        blame = blame or definition_of(sources, link.file, link.owner)
    return ClosedCycle(cycle=cycle, blame=blame, statements=tuple(statements)) if blame is not None else None


def _statements(cycle: Cycle, nodes: list[tuple[str, PlacedNode]]) -> Iterator[ClosingStatement]:
    for link, following in zip(cycle.links, (*cycle.links[1:], cycle.links[0]), strict=True):
        for file, placed in nodes if link.name else ():
            stored = _stored(placed, link)
            if stored is None:
                continue
            target, value = stored
            kind: Value | None = "back" if value is None else _kind_of(value, placed, link)
            if kind is not None:
                assert isinstance(placed.node, ast.stmt)
                yield ClosingStatement(
                    file=file,
                    line=placed.node.lineno,
                    function=placed.function,
                    link=link,
                    kind=kind,
                    value=value,
                    is_elsewhere=link.kind == "attribute" and _is_elsewhere(target, value, placed, link, following),
                )


def _stored(placed: PlacedNode, link: CycleLink) -> tuple[ast.expr | None, ast.expr | None] | None:
    """Where a statement that makes the link stores what; nothing where it defines a function or a dataclass's field."""
    is_variable = link.kind != "attribute"
    if is_variable and placed.function not in (link.owner, link.owner.rpartition(".<locals>.")[0]):
        return None
    match placed.node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == link.name:
            return (None, None) if link.kind == "closure" else None
        case ast.AnnAssign(target=ast.Name(id=name)) if name == link.name and placed.prefix == f"{link.owner}.":
            return None, None
        case (
            ast.Assign(targets=[target], value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="append" | "add"), args=[value]))
        ) if name_of(target) == link.name and isinstance(target, ast.Name) == is_variable:
            return target, value
    return None


def _is_elsewhere(
    target: ast.expr | None, value: ast.expr | None, placed: PlacedNode, link: CycleLink, following: CycleLink
) -> bool:
    """Whether `self` there is of another class than the one that has the attribute, or the one that it refers to."""
    if target is not None and ast.unparse(target).startswith(f"self.{link.name}"):
        return placed.function.rpartition(".")[0] != link.owner
    is_itself = isinstance(value, ast.Name) and value.id == "self"
    return is_itself and placed.function.rpartition(".")[0] != following.owner


def _kind_of(value: ast.expr, placed: PlacedNode, link: CycleLink) -> Value | None:
    """None of what refers to nothing: a constant, an empty container."""
    match value:
        case ast.Constant() | ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Tuple(elts=[]):
            return None
        case ast.Name(id="self"):
            return "self"
        case ast.Lambda():
            return "back"
        case ast.Attribute(value=ast.Name(id="self")) if link.through == "method":
            return "back"
        case ast.Name(id=name) if name in _given_to(placed):
            return "back"
        case ast.Call() | ast.ListComp() | ast.DictComp():
            return "made"
    return "named"


def _given_to(placed: PlacedNode) -> Iterator[str]:
    """The arguments of the function around, and the errors caught around."""
    for node in reversed(placed.ancestors):
        if isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg))
            return
