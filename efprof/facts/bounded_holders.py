"""Whether a program bounds a container by itself: then it fills up, and is no leak."""

import ast
from collections.abc import Iterator, Mapping, Sequence

from efprof.facts.growing_statements import GrowingStatement
from efprof.facts.holder_keys import keys_in, keys_of, may_meet
from efprof.facts.holder_lines import HolderGrowth
from efprof.facts.holder_places import HolderPlaces, variable_of
from efprof.facts.sources import Sources
from efprof.facts.syntax import PlacedNode, mentions, placed_nodes, site_of
from efprof.model import SourceLine

TAKING_OUT = frozenset({"pop", "popleft", "popitem", "clear"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def bound_of(growth: HolderGrowth, sources: Sources) -> SourceLine | None:
    """The line that makes it with a `maxlen`, takes entries out, or keeps its length below a limit; None without one.

    What comes after the loop that makes it grow bounds nothing, and neither does another variable of its name.
    """
    trees = {file: tree for file in sources.files if (tree := sources.tree(file)) is not None}
    container = _Container(growth, trees)
    sites = (
        site_of(file, placed)
        for file, tree in trees.items()
        for placed in placed_nodes(tree)
        if isinstance(placed.node, ast.stmt | ast.Call) and container.is_bounded_by(file, placed)
    )
    site = next(sites, None)
    return None if site is None else sources.line(site)


class _Container:
    """What grows: a holder, an entry of it, or every entry of it."""

    def __init__(self, growth: HolderGrowth, trees: Mapping[str, ast.AST]) -> None:
        self._keys = keys_in(growth.holder)
        self._grown_at = growth.statements[: growth.num_likeliest]
        self._places = HolderPlaces(growth.holder, self._grown_at, trees)
        self._depth = max([len(self._keys), *map(_depth_of, self._grown_at)])

    def is_bounded_by(self, file: str, placed: PlacedNode) -> bool:
        """Whether this statement or call keeps it from growing without end."""
        match placed.node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=arguments) if method in TAKING_OUT:
                taken = ast.Subscript(value=receiver, slice=arguments[0]) if arguments else receiver
                return self._is(file, placed, receiver, taken) and self._is_run_while_growing(file, placed)
            case ast.Delete(targets=targets):
                parts = [target for target in targets if isinstance(target, ast.Subscript)]
                is_it = any(self._is(file, placed, part.value, part) for part in parts)
                return is_it and self._is_run_while_growing(file, placed)
            case ast.If() | ast.While():
                return self._is_limit(file, placed, placed.node)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                if self._is_made(file, placed, target, value):
                    return True
                return self._is_cut(file, placed, target, value) and self._is_run_while_growing(file, placed)
        return False

    def _is(self, file: str, placed: PlacedNode, receiver: ast.expr, entry: ast.expr) -> bool:
        """Whether the receiver is the container, or one around it; of that, the entry may be the one that grows."""
        is_it = len(keys_of(receiver)) <= self._depth and may_meet(keys_of(entry), self._keys)
        return is_it and self._places.is_variable(file, placed, variable_of(receiver))

    def _is_made(self, file: str, placed: PlacedNode, target: ast.expr, value: ast.expr) -> bool:
        """`history = deque(maxlen=9)`; for entries `history = defaultdict(lambda: deque(maxlen=9))` as well."""
        if not self._is(file, placed, target, target):
            return False
        made = ast.walk(value) if len(keys_of(target)) < self._depth else [value]
        return any(_is_limited(one) for one in made if isinstance(one, ast.Call))

    def _is_cut(self, file: str, placed: PlacedNode, target: ast.expr, value: ast.expr) -> bool:
        """`history = history[-9:]` or `history[:] = history[-9:]`."""
        kept = target.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice) else target
        name = self._places.holder.name
        is_part = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) and mentions(value, name)
        return is_part and self._is(file, placed, kept, kept)

    def _is_limit(self, file: str, placed: PlacedNode, branches: ast.If | ast.While) -> bool:
        """Whether it grows only while it is short, or is replaced or left alone once it is long."""
        for comparison, is_long_if_true in _compared_lengths(branches.test):
            measured = _measured(comparison)
            if len(keys_of(measured)) < len(self._keys) or not self._is(file, placed, measured, measured):
                continue  # the length of a whole dictionary says nothing of one entry
            if_long, if_short = branches.body, branches.orelse
            if not is_long_if_true:
                if_long, if_short = if_short, if_long
            if self._is_replaced_in(file, placed, if_long):
                return True
            is_sure = isinstance(branches.test, ast.Compare) or _is_any(branches.test) == is_long_if_true
            is_left = bool(if_long) and self._is_left(file, placed, if_long[-1])
            if is_sure and (is_left or self._is_grown_within(file, if_short)):
                return True
        return False

    def _is_grown_within(self, file: str, block: list[ast.stmt]) -> bool:
        return all(one.file == file and any(_spans(part, one.line) for part in block) for one in self._grown_at)

    def _is_replaced_in(self, file: str, placed: PlacedNode, block: list[ast.stmt]) -> bool:
        targets = [
            target
            for part in block
            for node in ast.walk(part)
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        is_it = any(self._is(file, placed, target, target) and _is_whole(target) for target in targets)
        return is_it and self._is_run_while_growing(file, placed)

    def _is_left(self, file: str, placed: PlacedNode, last: ast.stmt) -> bool:
        """Whether the function or loop that makes it grow is left before it does, or for good."""
        loops = [above for above in placed.ancestors if isinstance(above, LOOPS)]
        return all(
            (one.file, one.function) == (file, placed.function) and _leaves_before(last, loops, one.line)
            for one in self._grown_at
        )

    def _is_run_while_growing(self, file: str, placed: PlacedNode) -> bool:
        """Where one run of one function both makes it and makes it grow, only a loop around both comes back to both."""
        here = [one for one in self._grown_at if (one.file, one.function) == (file, placed.function)]
        if not here or not self._places.is_made_per_run(placed.function):
            return True
        loops = [above for above in placed.ancestors if isinstance(above, LOOPS)]
        return any(_spans(loop, one.line) for loop in loops for one in here)


def _depth_of(statement: GrowingStatement) -> int:
    """How many keys lead to what it grows: none in `history[step] = loss`, one in `history[step].append(loss)`."""
    return len(statement.keys) - (statement.kind == "[...] =")


def _is_limited(made: ast.Call) -> bool:
    match made:
        case ast.Call(func=ast.Name(id="deque") | ast.Attribute(attr="deque"), args=[_, _]):
            return True
    limits = [keyword.value for keyword in made.keywords if keyword.arg == "maxlen"]
    return any(not (isinstance(limit, ast.Constant) and limit.value is None) for limit in limits)


def _is_whole(target: ast.expr) -> bool:
    """Not one entry of it, which may be replaced while it grows."""
    return not isinstance(target, ast.Subscript) or isinstance(target.slice, ast.Slice)


def _is_any(test: ast.expr) -> bool:
    """Whether one part of the condition that is true is enough."""
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)


def _compared_lengths(test: ast.expr) -> Iterator[tuple[ast.Compare, bool]]:
    """Each `len(x) > limit` of a condition, and whether it being true says that `x` is long; a limit of 0 is none."""
    for part in test.values if isinstance(test, ast.BoolOp) else [test]:
        match part:
            case ast.Compare(left=ast.Call(func=ast.Name(id="len")), ops=[operator], comparators=[limit]):
                is_long = isinstance(operator, ast.Gt | ast.GtE | ast.Eq)
            case ast.Compare(left=limit, ops=[operator], comparators=[ast.Call(func=ast.Name(id="len"))]):
                is_long = isinstance(operator, ast.Lt | ast.LtE | ast.Eq)
            case _:
                continue
        if not (isinstance(limit, ast.Constant) and limit.value == 0):
            yield part, is_long


def _measured(comparison: ast.Compare) -> ast.expr:
    for side in (comparison.left, *comparison.comparators):
        match side:
            case ast.Call(func=ast.Name(id="len"), args=[measured]):
                return measured
    return comparison


def _leaves_before(last: ast.stmt, loops: Sequence[ast.stmt], line: int) -> bool:
    """Whether the line is not reached any more, or in a loop not again, where a block ends in this statement."""
    is_within = any(_spans(loop, line) for loop in loops)
    match last:
        case ast.Return() | ast.Raise():
            return is_within or last.lineno < line
        case ast.Break():
            return any(_spans(loop, line) for loop in loops[-1:])
        case ast.Continue():
            return any(_spans(loop, line) for loop in loops[-1:]) and last.lineno < line
    return False


def _spans(block: ast.stmt, line: int) -> bool:
    return block.lineno <= line <= (block.end_lineno or block.lineno)
