"""Which statements of the user's source make a holder of tensors grow, and who else reads it."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import msgspec

from efprof.artifacts.holders import Holder, HolderCensus, read_censuses
from efprof.facts.growing_statements import GrowingStatement, growing_statements
from efprof.facts.holder_keys import keys_in, may_meet
from efprof.facts.holder_values import KnownValues
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.syntax import MODULE, PlacedNode, name_of, placed_nodes
from efprof.model import SourceLine

GRAPH_NODE_BYTES = 420
"""What an autograd node itself takes once backward has freed what it saved: 404 to 438 bytes measured, torch 2.13."""
HARMLESS_METHODS = frozenset({"item", "tolist", "detach", "clear", "pop", "popleft", "numel", "size", "dim", "zero_"})
HARMLESS_FUNCTIONS = frozenset({"float", "int", "len", "print", "str", "repr", "round", "bool", "format", "id"})
"""Reading a tensor through these needs no graph."""
OTHER_VARIABLE = 3
"""Farther than another file."""
QUEUES = frozenset({"Queue", "LifoQueue", "PriorityQueue"})
STATEMENT_KINDS = {
    "list": ("append", "extend", "insert", "+=", "= +"),
    "deque": ("append", "appendleft", "extend", "extendleft", "insert", "+="),
    "set": ("add", "update"),
    "dict": ("[...] =", "update", "setdefault", "append"),
    "Tensor": ("+=", "= +", "= f()"),
    "tuple": ("= f()", "= +", "+="),
    **dict.fromkeys(QUEUES, ("put", "put_nowait")),
}
"""By the holder's type, the statements that can make it grow; other types may grow by any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderGrowth:
    """A holder that grew, and the statements that can be why, likeliest first; `readers` read it otherwise.

    `statements[:num_likeliest]` fit equally well: one is an answer, several are candidates. `steps` are those after
    which the holder was counted.
    """

    holder: Holder
    steps: tuple[int, int]
    bytes_per_step: float
    statements: tuple[GrowingStatement, ...]
    num_likeliest: int
    readers: tuple[SourceLine, ...]

    @property
    def keeps_graphs(self) -> bool:
        """Whether autograd graphs hang on what it holds."""
        return keeps_graphs(self.holder)


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderLines:
    """The holders that grew in the last census, or from each to the next; most bytes first."""

    holders: tuple[HolderGrowth, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Find each holder's statements; raises NotRecorded where no census was taken."""
        censuses = read_censuses(run.rank_folder)
        # One that ran out of time says less than an earlier one that did not.
        whole = [census for census in censuses if not census.is_partial] or censuses[-1:]
        sources = run.get(Sources)
        values = run.get(KnownValues)
        grown = [_with_lines(holder, steps, sources, values) for holder, steps in _grown(whole)]
        return cls(holders=tuple(sorted(grown, key=lambda growth: -growth.bytes_per_step)))


def _grown(censuses: Sequence[HolderCensus]) -> Iterator[tuple[Holder, tuple[int, int]]]:
    """Those of the last census, and the steps between which they grew.

    What is fed every so often may stand still in the few steps of one census, and be more in each than in the one
    before.
    """
    first, last = censuses[0], censuses[-1]
    earlier = {_key(holder): holder for holder in first.holders}
    for holder in last.holders:
        if bytes_after(holder) > bytes_before(holder):
            yield holder, (last.step_before, last.step_after)
        elif _key(holder) in earlier and _rises(holder, censuses):
            yield _since(earlier[_key(holder)], holder), (first.step_before, last.step_after)


def _key(holder: Holder) -> tuple[str, str, str | None]:
    return holder.scope, holder.path, holder.file


def _rises(holder: Holder, censuses: Sequence[HolderCensus]) -> bool:
    """Whether each of three or more saw more of it than the one before: what was filled once is no growth."""
    sizes = [sum(bytes_after(one) for one in census.holders if _key(one) == _key(holder)) for census in censuses]
    return len(sizes) > 2 and all(before < after for before, after in pairwise(sizes))


def _since(first: Holder, last: Holder) -> Holder:
    return msgspec.structs.replace(
        last,
        tensors_before=first.tensors_before,
        tensor_bytes_before=first.tensor_bytes_before,
        graph_nodes_before=first.graph_nodes_before,
        graph_bytes_before=first.graph_bytes_before,
        length_before=first.length_before,
        max_length=last.max_length if first.max_length == last.max_length else 0,
    )


def keeps_graphs(holder: Holder) -> bool:
    """Whether there are graphs, and more of them or of the tensors they hang on: counting stops at a limit."""
    is_growing = holder.graph_nodes_after > holder.graph_nodes_before or holder.tensors_after > holder.tensors_before
    return holder.graph_nodes_after > 0 and is_growing


def bytes_before(holder: Holder) -> int:
    """What hung on it at the first count: tensors, what their graphs saved, and the graphs themselves."""
    return holder.tensor_bytes_before + holder.graph_bytes_before + GRAPH_NODE_BYTES * holder.graph_nodes_before


def bytes_after(holder: Holder) -> int:
    """The same at the second count."""
    return holder.tensor_bytes_after + holder.graph_bytes_after + GRAPH_NODE_BYTES * holder.graph_nodes_after


def _with_lines(holder: Holder, steps: tuple[int, int], sources: Sources, values: KnownValues) -> HolderGrowth:
    ranks = {statement: _rank(statement, holder, values) for statement in _candidates(holder, sources)}
    ranked = sorted(ranks, key=lambda statement: ranks[statement])
    likeliest = [statement for statement in ranked if ranks[statement] == ranks[ranked[0]]]
    return HolderGrowth(
        holder=holder,
        steps=steps,
        bytes_per_step=(bytes_after(holder) - bytes_before(holder)) / max(1, steps[1] - steps[0]),
        statements=tuple(ranked),
        num_likeliest=len(likeliest),
        readers=tuple(_readers(holder, sources)),
    )


def _candidates(holder: Holder, sources: Sources) -> list[GrowingStatement]:
    """Statements on that name that keep more than numbers; one through a graph's end keeps no graph."""
    found, keys = [], keys_in(holder)
    for file in sources.files:
        tree = sources.tree(file)
        for statement in growing_statements(tree, file, holder.name) if tree else ():
            if not may_meet(statement.keys, keys):
                continue
            if not statement.keeps_numbers and not (keeps_graphs(holder) and statement.keeps_detached):
                found.append(statement)
    return found


def _rank(statement: GrowingStatement, holder: Holder, values: KnownValues) -> tuple[int, ...]:
    """Smaller is likelier: where it stands, whether it fits the holder's type, whether it keeps a plain tensor.

    What this command is known not to come to is less likely than all others on that variable.

    Where graphs are kept, one that takes numbers or detached tensors along is less likely.
    """
    kinds = STATEMENT_KINDS.get(holder.type.removeprefix("default").replace("OrderedDict", "dict"))
    fits = kinds is None or statement.kind in kinds
    is_plain = isinstance(statement.value, ast.Name | ast.Attribute)
    is_safe = keeps_graphs(holder) and statement.keeps_safe_parts
    may_run = all(values.may_be(test, wanted) for test, wanted in statement.guards)
    distance = _distance(statement, holder)
    return int(distance == OTHER_VARIABLE), int(not may_run), distance, int(not fits), int(is_safe), int(not is_plain)


def _distance(statement: GrowingStatement, holder: Holder) -> int:
    """0 inside the holder's function or class, 1 elsewhere in its file, 2 in another file; 3 is another variable."""
    is_attribute = holder.scope == "attribute"
    if holder.scope != "global" and statement.is_attribute != is_attribute:
        return OTHER_VARIABLE
    if statement.file != holder.file:
        return 2
    is_global = holder.scope == "global"
    owner = holder.owner.rsplit(".", 1)[-1] if is_attribute else holder.owner
    parts = statement.function.split(".")
    is_inside = owner in parts if is_attribute else is_global or is_within(statement.function, owner)
    return 0 if is_inside else 1


def is_within(function: str, owner: str) -> bool:
    """Whether a function, by its qualified name, is the owner or lies within it."""
    return function == owner or function.endswith(f".{owner}") or function.startswith(f"{owner}.")


def _readers(holder: Holder, sources: Sources) -> Iterator[SourceLine]:
    """Lines that read the holder in a way that may need its graphs."""
    for file in sources.files:
        tree = sources.tree(file)
        for placed in placed_nodes(tree) if tree else ():
            if _is_read(placed, holder) and not _is_harmless(placed, holder.name):
                node = placed.node
                assert isinstance(node, ast.expr)
                if holder.scope != "local" or is_within(placed.function, holder.owner) or placed.function == MODULE:
                    yield sources.line(f"{file}:{node.lineno}:{placed.function}")


def _is_read(placed: PlacedNode, holder: Holder) -> bool:
    node = placed.node
    kind = ast.Attribute if holder.scope == "attribute" else (ast.Name, ast.Attribute)
    return isinstance(node, kind) and isinstance(node.ctx, ast.Load) and name_of(node) == holder.name


def _is_harmless(placed: PlacedNode, name: str) -> bool:
    """Whether what is read ends as a number or a shape, or only makes the holder grow."""
    for above in reversed(placed.ancestors):
        match above:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in HARMLESS_METHODS or (
                name_of(receiver) == name
            ):
                return True
            case ast.Call(func=ast.Name(id=function)) if function in HARMLESS_FUNCTIONS:
                return True
            case ast.FormattedValue():
                return True
            case ast.Attribute(attr="data" | "shape" | "dtype" | "device"):
                return True
            case ast.Subscript(value=inner, ctx=ast.Store()) if name_of(inner) == name:
                return True
            case ast.AugAssign(target=target) | ast.Assign(targets=[target]) if name_of(target) == name:
                return True
            case ast.stmt():
                return False
    return False
