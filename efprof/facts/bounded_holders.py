"""Whether a program bounds a container by itself: then it fills up, and is no leak."""

import ast
from collections.abc import Mapping, Sequence

from efprof.artifacts.steps import read_steps
from efprof.facts.counted_limits import counted_limit
from efprof.facts.growing_statements import JOINING, GrowingStatement
from efprof.facts.holder_conditions import spans
from efprof.facts.holder_counts import counts_of
from efprof.facts.holder_guards import HolderGuards
from efprof.facts.holder_keys import keys_in, keys_of, may_meet
from efprof.facts.holder_limits import compared_lengths, drops, is_ring, leaves_some, limits_of_made
from efprof.facts.holder_lines import QUEUES, HolderGrowth
from efprof.facts.holder_places import HolderPlaces, variable_of
from efprof.facts.holder_renewals import CHOICES, is_by_choice, is_empty
from efprof.facts.holder_values import KnownValues
from efprof.facts.run import Run
from efprof.facts.run_together import MAKERS, RunTogether
from efprof.facts.sources import Sources, split_site
from efprof.facts.syntax import PlacedNode, called_name, mentions, placed_nodes, site_of

TAKING_OUT = frozenset({"pop", "popleft", "popitem", "clear"})
TAKING_FROM_QUEUE = frozenset({"get", "get_nowait"})
COPYING = frozenset({"list", "dict", "tuple", "set", "sorted", "reversed", "copy", "deepcopy", "clone"})
"""Calls that give back as much as they are given."""
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def bound_of(growth: HolderGrowth, run: Run) -> str | None:
    """In words: by the `maxlen` counted, or at the line that makes it with one, takes entries out, or keeps it short.

    None without one. What comes after the loop that makes it grow bounds nothing, what nobody calls neither, another
    variable of its name neither, and nor does what should have acted while the holder was counted to grow.
    """
    limit = counted_limit(growth.holder, run)
    if limit:
        return f"by its `maxlen` of {limit:,}"
    sources = run.get(Sources)
    trees = {file: tree for file in sources.files if (tree := sources.tree(file)) is not None}
    together = RunTogether(trees)
    container = _Container(growth, trees, together, is_endless=limit == 0)
    counts = counts_of(run, growth, container.num_keys_below)
    values, sites = run.get(KnownValues), _backward_sites(run)
    guards = HolderGuards(growth.holder.name, counts, container.grown_at, sites, trees, together, values)
    found = (
        site_of(file, placed)
        for file, tree in trees.items()
        for placed in placed_nodes(tree)
        if isinstance(placed.node, ast.stmt | ast.Call) and container.is_bounded_by(file, placed)
        if guards.may_still_bound(file, placed)
    )
    site = next(found, None)
    return None if site is None else f"at {sources.line(site)}"


def _backward_sites(run: Run) -> list[tuple[str, int, str]]:
    sites = {record.backward_site for record in read_steps(run.rank_folder)[0] if record.backward_site}
    return [split_site(site) for site in sorted(sites)]


class _Container:
    """What grows: a holder, an entry of it, or every entry of it."""

    def __init__(
        self, growth: HolderGrowth, trees: Mapping[str, ast.AST], together: RunTogether, *, is_endless: bool
    ) -> None:
        self._keys = keys_in(growth.holder)
        self.grown_at = growth.statements[: growth.num_likeliest]
        self._places = HolderPlaces(growth.holder, self.grown_at, trees)
        self._together = together
        self._depth = max([len(self._keys), *map(_depth_of, self.grown_at)])
        # Where a count is taken between adding and taking out, one entry more may be seen.
        self._is_longer = growth.holder.length_after > growth.holder.length_before + 1
        self._is_endless = is_endless
        self._is_queue = growth.holder.type in QUEUES
        self.num_keys_below = self._depth - len(self._keys)

    def is_bounded_by(self, file: str, placed: PlacedNode) -> bool:
        """Whether this statement or call keeps it from growing without end."""
        match placed.node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=arguments) if method in TAKING_OUT:
                taken = ast.Subscript(value=receiver, slice=arguments[0]) if arguments else receiver
                return self._is_taken(file, placed, receiver, taken)
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in TAKING_FROM_QUEUE:
                return self._is_queue and self._is_taken(file, placed, receiver, receiver)
            case ast.Delete(targets=targets):
                parts = [target for target in targets if isinstance(target, ast.Subscript)]
                return any(self._is_taken(file, placed, part.value, part) for part in parts)
            case ast.If() | ast.While():
                return self._is_limit(file, placed, placed.node)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                return any(self._is_made(file, placed, *pair) for pair in zip(targets, values, strict=False))
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                if self._is_made(file, placed, target, value):
                    return True
                if isinstance(target, ast.Subscript) and is_ring(target):
                    is_all = all(one.kind == "[...] =" for one in self.grown_at)
                    return is_all and self._is(file, placed, target.value, target)
                is_cut = self._is_cut(file, placed, target, value) and self._is_run_while_growing(file, placed)
                return is_cut or self._is_renewed(file, placed, target, value)
        return False

    def _is(self, file: str, placed: PlacedNode, receiver: ast.expr, entry: ast.expr) -> bool:
        """Whether the receiver is the container, or one around it; of that, the entry may be the one that grows."""
        is_it = len(keys_of(receiver)) <= self._depth and may_meet(keys_of(entry), self._keys)
        return is_it and self._places.is_variable(file, placed, variable_of(receiver))

    def _is_taken(self, file: str, placed: PlacedNode, receiver: ast.expr, entry: ast.expr) -> bool:
        """`history.pop(0)`, `del history[0]`, `stats["train"].clear()`."""
        if not self._is(file, placed, receiver, entry) or not self._has_keys(entry):
            return False
        if self._is_longer and self._is_itself(receiver) and not leaves_some(entry):
            # Where somebody else empties a queue, it got longer all the same.
            is_slower = self._is_beside_growth(file, placed) or (
                self._is_queue and self._is_run_by_others(file, placed)
            )
            return self._is_run_while_growing(file, placed) and not is_slower
        return self._is_run_while_growing(file, placed)

    def _has_keys(self, entry: ast.expr) -> bool:
        """Whether entries are added under the texts that lead here: `del cache["tmp"]` bounds no `cache[step] = x`."""
        added = [self._keys, *(one.keys for one in self.grown_at)]
        return all(
            key is None or any(keys[place : place + 1] == (key,) for keys in added)
            for place, key in enumerate(keys_of(entry))
        )

    def _is_itself(self, expression: ast.expr) -> bool:
        """Whether it is what the count measured the length of, not an entry of it."""
        return len(keys_of(expression)) == len(self._keys)

    def _is_beside_growth(self, file: str, placed: PlacedNode) -> bool:
        """Whether each round of a loop does both: then what got longer gets more than is taken out."""
        loop = next((above for above in reversed(placed.ancestors) if isinstance(above, LOOPS)), None)
        if loop is None or any(isinstance(one, ast.Continue) for one in ast.walk(loop)):
            return False
        if any(isinstance(above, CHOICES) for above in placed.ancestors[placed.ancestors.index(loop) :]):
            return False
        inner = [one for one in ast.walk(loop) if isinstance(one, LOOPS) and one is not loop]
        return any(
            (one.file, one.function) == (file, placed.function)
            and spans(loop, one.line)
            and not any(spans(other, one.line) for other in inner)
            for one in self.grown_at
        )

    def _is_made(self, file: str, placed: PlacedNode, target: ast.expr, value: ast.expr) -> bool:
        """`history = deque(maxlen=9)`; for entries `history = defaultdict(lambda: deque(maxlen=9))` as well.

        Not where there are more and more entries, each of them short.
        """
        if self._is_endless or not self._is(file, placed, target, target):
            return False
        is_of_entries = len(keys_of(target)) < self._depth and not (self._is_longer and self._is_itself(target))
        made = ast.walk(value) if is_of_entries else [value]
        return any(_is_limited(one) for one in made if isinstance(one, ast.Call))

    def _is_cut(self, file: str, placed: PlacedNode, target: ast.expr, value: ast.expr) -> bool:
        """`history = history[-9:]` or `history[:] = history[-9:]`."""
        kept = target.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice) else target
        is_part = isinstance(value, ast.Subscript) and drops(value.slice) and mentions(value, self._places.holder.name)
        return is_part and self._is(file, placed, kept, kept)

    def _is_renewed(self, file: str, placed: PlacedNode, target: ast.expr, value: ast.expr) -> bool:
        """`self.history = []`, again and again; what makes it only once, for a new object or where it is missing, not.

        Such a statement stands in every program that makes a list, so that it must be seen to be run.
        """
        if placed.function.rpartition(".")[2] in MAKERS or not is_empty(value):
            return False
        if len(keys_of(target)) > len(self._keys) or not self._is(file, placed, target, target):
            return False
        grown_here = [one.line for one in self.grown_at if one.file == file]
        if not self._is_run_while_growing(file, placed) or is_by_choice(placed, grown_here):
            return False
        here = [one for one in self.grown_at if (one.file, one.function) == (file, placed.function)]
        if here and self._places.is_made_per_run(placed.function):
            return True  # a loop around both
        places = [(one.file, one.line, one.function) for one in self.grown_at]
        return any(self._together.is_seen_to_alternate(_place_of(file, placed), place) for place in places)

    def _is_limit(self, file: str, placed: PlacedNode, branches: ast.If | ast.While) -> bool:
        """Whether it grows only while it is short, or is replaced or left alone once it is long."""
        for measured, limit, is_long_if_true in compared_lengths(branches.test):
            if isinstance(limit, ast.Constant) and limit.value == 0:
                continue
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
            if is_sure and self._is_lengthened_in(file, placed, if_short):
                return True
        return False

    def _is_lengthened_in(self, file: str, placed: PlacedNode, block: list[ast.stmt]) -> bool:
        """`history.append(None)`, to which `history[place] = x` adds no entry."""
        if self._places.holder.type != "list" or any(one.kind != "[...] =" for one in self.grown_at):
            return False
        calls = [node for part in block for node in ast.walk(part) if called_name(node) == "append"]
        receivers = [
            one.func.value for one in calls if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
        ]
        return any(self._is(file, placed, one, one) for one in receivers)

    def _is_grown_within(self, file: str, block: list[ast.stmt]) -> bool:
        return all(one.file == file and any(spans(part, one.line) for part in block) for one in self.grown_at)

    def _is_replaced_in(self, file: str, placed: PlacedNode, block: list[ast.stmt]) -> bool:
        targets = [
            target
            for part in block
            for node in ast.walk(part)
            if isinstance(node, ast.Assign) and not _keeps_all(node.value, self._places.holder.name)
            for target in node.targets
        ]
        is_it = any(self._is(file, placed, target, target) and _is_whole(target) for target in targets)
        return is_it and self._is_run_while_growing(file, placed)

    def _is_left(self, file: str, placed: PlacedNode, last: ast.stmt) -> bool:
        """Whether the function or loop that makes it grow is left before it does, or for good."""
        loops = [above for above in placed.ancestors if isinstance(above, LOOPS)]
        return all(
            (one.file, one.function) == (file, placed.function) and _leaves_before(last, loops, one.line)
            for one in self.grown_at
        )

    def _is_run_while_growing(self, file: str, placed: PlacedNode) -> bool:
        """Whether the program comes back to both; where one run of one function has it, only by a loop around both."""
        here = [one for one in self.grown_at if (one.file, one.function) == (file, placed.function)]
        if here and self._places.is_made_per_run(placed.function):
            loops = [above for above in placed.ancestors if isinstance(above, LOOPS)]
            return any(spans(loop, one.line) for loop in loops for one in here)
        place = _place_of(file, placed)
        return any(self._together.may_alternate(place, (one.file, one.line, one.function)) for one in self.grown_at)

    def _is_run_by_others(self, file: str, placed: PlacedNode) -> bool:
        return self._together.is_free(*_place_of(file, placed))


def _place_of(file: str, placed: PlacedNode) -> tuple[str, int, str]:
    assert isinstance(placed.node, ast.stmt | ast.expr)
    return file, placed.node.lineno, placed.function


def _depth_of(statement: GrowingStatement) -> int:
    """How many keys lead to what it grows: none in `history[step] = loss`, one in `history[step].append(loss)`."""
    return len(statement.keys) - (statement.kind == "[...] =")


def _is_limited(made: ast.Call) -> bool:
    return any(not (isinstance(limit, ast.Constant) and not limit.value) for limit in limits_of_made(made))


def _keeps_all(value: ast.expr, name: str) -> bool:
    """Whether a value has all that the variable of that name holds: `history + [x]`, `torch.cat([history, x])`."""
    match value:
        case ast.Name(id=found) | ast.Attribute(attr=found) if found == name:
            return True
        case ast.Subscript(value=inner, slice=index):
            return not drops(index) and _keeps_all(inner, name)
        case ast.Starred(value=inner):
            return _keeps_all(inner, name)
        case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
            return _keeps_all(left, name) or _keeps_all(right, name)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            return any(_keeps_all(part, name) for part in parts)
        case ast.Call(func=callee, args=given) if called_name(value) in JOINING | COPYING:
            receivers = [callee.value] if isinstance(callee, ast.Attribute) else []
            return any(_keeps_all(part, name) for part in (*given, *receivers))
    return False


def _is_whole(target: ast.expr) -> bool:
    """Not one entry of it, which may be replaced while it grows."""
    return not isinstance(target, ast.Subscript) or isinstance(target.slice, ast.Slice)


def _is_any(test: ast.expr) -> bool:
    """Whether one part of the condition that is true is enough."""
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)


def _leaves_before(last: ast.stmt, loops: Sequence[ast.stmt], line: int) -> bool:
    """Whether the line is not reached any more, or in a loop not again, where a block ends in this statement."""
    is_within = any(spans(loop, line) for loop in loops)
    match last:
        case ast.Return() | ast.Raise():
            return is_within or last.lineno < line
        case ast.Break():
            return any(spans(loop, line) for loop in loops[-1:])
        case ast.Continue():
            return any(spans(loop, line) for loop in loops[-1:]) and last.lineno < line
    return False
