"""Garbage in reference cycles: how high it piles up between collections, and which statement closes a cycle.

That is the one that refers back to what was there before.
"""

import ast
import statistics
from bisect import bisect_right
from itertools import pairwise
from typing import Self

from efprof.artifacts.holders import CollectedGarbage, Cycle, CycleLink, LargeCollection, read_cycles
from efprof.facts.growth.leaks import Leaks
from efprof.facts.run.run import Run
from efprof.facts.source.sources import PlacedNode, Sources, definition_of, name_of, placed_nodes
from efprof.model import Gain, Narrative, SourceLine, ThinEvidence, frozen_dataclass
from efprof.units import MIB, format_bytes

COMPARABLE = 0.5
"""Of the most that a collection freed: smaller ones are of young objects only, or came early by chance."""

MIN_COLLECTIONS = 3
"""One frees what the program's start has left, and two may be chance; where the cycle was found, one is enough."""
MIN_STEPS_APART = 4
"""What is collected sooner, as by `gc.collect()` in every step, has no time to pile up."""
MIN_BYTES, MIN_SHARE = 16 * MIB, 0.1
"""What the largest collection freed, at least, and its share of the run's peak. Not one of 19 collections in thirteen
healthy programs of the tests freed a tenth of a MiB (measured): less than this is real, and not worth a finding."""


@frozen_dataclass
class CycleSawtooth:
    """The comparable large collections, the median steps between them (0 without), and the run's peak as read.

    It `is_alone` where nothing else was counted to make memory grow.
    """

    garbage: CollectedGarbage
    teeth: tuple[LargeCollection, ...]
    steps_apart: float
    peak_bytes: int
    is_alone: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where collections were not watched."""
        garbage, records, leaks = read_cycles(run.rank_folder), run.steps, run.find(Leaks, ThinEvidence)
        most = max((each.freed_bytes for each in garbage.collections), default=0)
        large = [each for each in garbage.collections if each.freed_bytes >= COMPARABLE * most]
        starts = [record.started_ns for record in records]
        places = [bisect_right(starts, each.at_ns) - 1 for each in large]
        steps = [records[place].step if place >= 0 else 0 for place in places]
        read = [size for record in records if record.window is None for size in record.allocated()]
        apart = [later - step for step, later in pairwise([0, *steps])]
        return cls(
            garbage=garbage,
            teeth=tuple(large),
            steps_apart=statistics.median(apart) if apart else 0.0,
            peak_bytes=max([*read, *(each.before_bytes for each in large)], default=0),
            is_alone=not (leaks and leaks.leaks),
        )

    @property
    def piles_up(self) -> bool:
        """Whether much garbage waits for the collector again and again.

        Where the cycle was found, what collections leave counts as well: that is older, or held by C++ as a node is
        that refers to its own output, and no collection sees it.
        """
        is_known = bool(self.garbage.cycles) or len(self.teeth) >= MIN_COLLECTIONS
        if not self.teeth or not is_known or self.steps_apart < MIN_STEPS_APART:
            return False
        freed_bytes = max(tooth.freed_bytes for tooth in self.teeth)
        pile_bytes = self.height_bytes if self.garbage.cycles and self.is_alone else freed_bytes
        return freed_bytes >= MIN_BYTES and pile_bytes >= MIN_SHARE * self.peak_bytes

    @property
    def height_bytes(self) -> int:
        """From the lowest that collections left to the most that one found; only where there are teeth.

        A collection of young objects leaves the garbage that had grown older, so that the level rises until an older
        generation's turn.
        """
        lowest = min(tooth.before_bytes - tooth.freed_bytes for tooth in self.teeth)
        return max(tooth.before_bytes for tooth in self.teeth) - lowest


def cycle_gain(sawtooth: CycleSawtooth) -> Gain:
    """What lay there as garbage when most did; another run's collections come at other steps."""
    height, one_step = sawtooth.height_bytes, sawtooth.height_bytes / sawtooth.steps_apart
    least = min(tooth.freed_bytes for tooth in sawtooth.teeth)
    return Gain(
        explanation="the most that was allocated when a collection began, less the lowest that collections left; its "
        "interval goes from what the least of the comparable collections freed to that, and one step's garbage farther "
        "at both ends, as another run's collections come at other moments",
        peak_bytes=height,
        peak_bytes_interval=(max(0.0, least - one_step), height + one_step),
    )


@frozen_dataclass
class ClosingStatement:
    """A statement that stores `value` and so makes `link`; of a smaller `rank` it is likelier to close the cycle."""

    file: str
    line: int
    function: str
    link: CycleLink
    value: ast.expr
    rank: tuple[bool, int, str, int]


@frozen_dataclass
class ClosedCycle:
    """A cycle, the line to blame for it, and the statements that could close it, likeliest first."""

    cycle: Cycle
    blame: SourceLine
    statements: tuple[ClosingStatement, ...]


def closed_cycle(run: Run) -> ClosedCycle | None:
    """Of the cycles that a line of the user's was found for, that with most bytes; raises NotRecorded."""
    sources = run.get(Sources)
    placed = [(file, one) for file in sources.files for one in placed_nodes(sources.tree(file))]
    for cycle in read_cycles(run.rank_folder).cycles:
        pairs = list(zip(cycle.links, (*cycle.links[1:], cycle.links[0]), strict=True))
        found = (_statement(link, following.owner, file, one) for link, following in pairs for file, one in placed)
        statements = sorted((one for one in found if one is not None), key=lambda statement: statement.rank)
        lines = [sources.line(f"{one.file}:{one.line}:{one.function}") for one in statements[:1]]
        lines += [line for link in cycle.links if (line := definition_of(sources, link.file, link.owner))]
        if lines:
            return ClosedCycle(cycle=cycle, blame=lines[0], statements=tuple(statements))
    return None


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


def _statement(link: CycleLink, referred_to: str, file: str, placed: PlacedNode) -> ClosingStatement | None:
    """One that makes the link to an object of that class or function; None of any other node."""
    match placed.node:
        case (
            ast.Assign(targets=[target], value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="append" | "add"), args=[value]))
        ) if name_of(target) == link.name:
            pass
        case _:
            return None
    is_variable = link.kind != "attribute"
    is_outside = is_variable and placed.function not in (link.owner, link.owner.rpartition(".<locals>.")[0])
    match value:
        case ast.Constant() | ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Tuple(elts=[]):
            is_outside = True  # these refer to nothing
    if is_outside or isinstance(target, ast.Name) != is_variable:
        return None
    owner, is_self = placed.function.rpartition(".")[0], isinstance(value, ast.Name) and value.id == "self"
    is_elsewhere = is_self and owner != referred_to  # its `self` is of another class than the link
    if ast.unparse(target).startswith(f"self.{link.name}"):
        is_elsewhere = owner != link.owner
    is_given = isinstance(value, ast.Name) and value.id in placed.arguments
    is_made = isinstance(value, ast.Call | ast.ListComp | ast.DictComp)  # what is made there hangs below
    order = 2 * is_made - 2 * is_self - is_given
    return ClosingStatement(
        file=file,
        line=placed.node.lineno,
        function=placed.function,
        link=link,
        value=value,
        rank=(is_elsewhere and not is_variable, order, file, -placed.node.lineno),
    )
