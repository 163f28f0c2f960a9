"""Whether a statement that would bound a container may not have had to act yet, as long as it was counted.

Of a container that got longer in every count it is known that nothing held it: what stands in the text bounds it only
where a limit is not reached yet, or where the statement is run now and then and the counts ended before.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from efprof.facts.growing_statements import GrowingStatement
from efprof.facts.holder_conditions import FUNCTIONS, Guard, guards_below
from efprof.facts.holder_counts import HolderCounts
from efprof.facts.holder_limits import compared_lengths, limits_in, limits_of_made
from efprof.facts.holder_values import KnownValues
from efprof.facts.possible_values import UNKNOWN, Value
from efprof.facts.run_together import RunTogether
from efprof.facts.syntax import MODULE, PlacedNode, called_name, mentions, placed_nodes

Place = tuple[str, int, str]
EPOCH = re.compile(r".*epoch.*", re.IGNORECASE)
COUNTER = re.compile(r"(.*_)?(steps?|epochs?|iter|iterations?|it|idx|index|i|n|batch|count|counter|turn|round)")
"""What programs call a number that rises with the steps."""


class HolderGuards:
    """The conditions under which the statements of a program are run, against the counts of one holder."""

    def __init__(
        self,
        name: str,
        counts: HolderCounts,
        grown_at: Sequence[GrowingStatement],
        backward_sites: Sequence[Place],
        trees: Mapping[str, ast.AST],
        together: RunTogether,
        values: KnownValues,
    ) -> None:
        """`name` is that of the holder."""
        self._name = name
        self._counts = counts
        self._grown_at: list[Place] = [(one.file, one.line, one.function) for one in grown_at]
        self._backward_sites = backward_sites
        self._together = together
        self._values = values
        self._calls: defaultdict[str, list[tuple[str, PlacedNode]]] = defaultdict(list)
        self._returned: defaultdict[str, list[ast.expr]] = defaultdict(list)
        for file, tree in trees.items():
            for placed in placed_nodes(tree):
                if isinstance(placed.node, ast.Return) and placed.node.value is not None:
                    self._returned[placed.function.rpartition(".")[2]].append(placed.node.value)
                if isinstance(placed.node, ast.Call):
                    self._calls[called_name(placed.node)].append((file, placed))

    def may_still_bound(self, file: str, placed: PlacedNode) -> bool:
        """Whether a statement that bounds the holder by its text may do so, for all that was counted."""
        if not self._counts.is_rising:
            return True
        limits = limits_in(placed.node, self._name)
        is_ample = any(self._counts.may_hold(self._values.of(limit)) for limit in limits)
        if isinstance(placed.node, ast.Assign | ast.AnnAssign) and _makes(placed.node):
            return is_ample
        if isinstance(placed.node, ast.If | ast.While):
            if not self._values.may_be(placed.node.test, wanted=True):
                return False
            is_ample |= self._is_rare(placed.node.test, wanted=True)
        if self._is_never_run(file, placed, frozenset()):
            return False
        return is_ample or self._waits(file, placed, frozenset())

    def _is_never_run(self, file: str, placed: PlacedNode, seen: frozenset[str]) -> bool:
        """Whether a condition around it, or around every call of its function, is known not to hold."""
        if any(not self._values.may_be(test, wanted) for test, wanted in self._guards(placed)):
            return True
        if placed.function == MODULE or placed.function in seen or self._together.is_free(*_place_of(file, placed)):
            return False
        calls = self._calls_of(placed.function)
        return bool(calls) and all(self._is_never_run(*call, seen | {placed.function}) for call in calls)

    def _waits(self, file: str, placed: PlacedNode, seen: frozenset[str]) -> bool:
        """Whether the text says that it is run less often than was counted."""
        guards, place = self._guards(placed), _place_of(file, placed)
        if any(not self._values.may_be(test, wanted) for test, wanted in guards):
            return False
        if any(self._is_rare(test, wanted) for test, wanted in guards) or self._is_in_loop_of_its_own(placed):
            return True
        if any(self._together.is_rarer(place, grown, self._backward_sites) for grown in self._grown_at):
            return True
        if self._together.is_free(*place):
            return not guards or EPOCH.fullmatch(placed.function) is not None
        is_beside = any((file, placed.function) == (grown[0], grown[2]) for grown in self._grown_at)
        if is_beside or placed.function in seen or self._place_of_common_loop(placed) is not None:
            return False
        calls = self._calls_of(placed.function)
        return not calls or any(self._waits(*call, seen | {placed.function}) for call in calls)

    def _calls_of(self, function: str) -> list[tuple[str, PlacedNode]]:
        return self._calls.get(function.rpartition(".")[2], [])

    def _guards(self, placed: PlacedNode) -> list[Guard]:
        """The conditions above it, within its function and the innermost loop that runs both, and early ways out."""
        return guards_below(placed, self._start(placed))

    def _start(self, placed: PlacedNode) -> int:
        loop = self._place_of_common_loop(placed)
        functions = [place for place, above in enumerate(placed.ancestors) if isinstance(above, FUNCTIONS)]
        return max(functions[-1] if functions else 0, 0 if loop is None else loop)

    def _place_of_common_loop(self, placed: PlacedNode) -> int | None:
        """Among what is above it, the innermost loop in whose turns the holder grows."""
        places = [
            place
            for place, above in enumerate(placed.ancestors)
            if any(self._together.is_run_by(above, grown) for grown in self._grown_at)
        ]
        return places[-1] if places else None

    def _is_in_loop_of_its_own(self, placed: PlacedNode) -> bool:
        """`for _ in range(step // 500): history.pop(0)`."""
        return any(isinstance(above, ast.For) for above in placed.ancestors[self._start(placed) + 1 :])

    def _is_rare(self, test: ast.expr, wanted: bool, within: frozenset[str] = frozenset()) -> bool:
        """Whether a condition comes true only after more entries or steps than were counted."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._is_rare(operand, not wanted, within)
            case ast.BoolOp(values=parts):
                return any(self._is_rare(part, wanted, within) for part in parts)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) | ast.Attribute(attr=name):
                given_back = [] if name in within else self._returned.get(name, [])
                return any(self._is_rare(one, wanted, within | {name}) for one in given_back)
        periods = [node for node in ast.walk(test) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)]
        if periods:
            return any(self._is_long(one) for one in periods)
        for measured, limit, is_of_long in compared_lengths(test):
            if mentions(measured, self._name):
                return is_of_long == wanted and self._counts.may_hold(self._values.of(limit))
        return any(self._is_late(limit) for limit in _late_limits(test, wanted))

    def _is_long(self, period: ast.BinOp) -> bool:
        if any(EPOCH.fullmatch(name) for name in _names(period.left)):
            return True
        values = self._values.of(period.right)
        return any(value is UNKNOWN or _is_more(value, self._counts.num_steps) for value in values)

    def _is_late(self, limit: ast.expr) -> bool:
        values = self._values.of(limit)
        return any(value is UNKNOWN or _is_more(value, self._counts.last_step) for value in values)


def _place_of(file: str, placed: PlacedNode) -> Place:
    assert isinstance(placed.node, ast.stmt | ast.expr)
    return file, placed.node.lineno, placed.function


def _makes(node: ast.Assign | ast.AnnAssign) -> bool:
    return node.value is not None and any(
        limits_of_made(one) for one in ast.walk(node.value) if isinstance(one, ast.Call)
    )


def _late_limits(test: ast.expr, wanted: bool) -> Iterator[ast.expr]:
    """`500` of `step >= 500`; what holds early is not late."""
    match test:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            is_above = isinstance(operator, ast.Gt | ast.GtE | ast.Eq if wanted else ast.Lt | ast.LtE | ast.NotEq)
            is_below = isinstance(operator, ast.Lt | ast.LtE | ast.Eq if wanted else ast.Gt | ast.GtE | ast.NotEq)
            if is_above and _counts_steps(left):
                yield right
            elif is_below and _counts_steps(right):
                yield left


def _counts_steps(expression: ast.expr) -> bool:
    return any(COUNTER.fullmatch(name) for name in _names(expression))


def _names(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


def _is_more(value: Value, number: int) -> bool:
    return isinstance(value, int | float) and value > number
