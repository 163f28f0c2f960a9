"""Whether a statement puts a data set on the device, by the text: what is made there, and how the steps use it.

Names are followed through assignments, lists, calls and results; attributes through their class, others by name.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from efprof.facts.device_dataset_slices import only_slices
from efprof.facts.device_dataset_syntax import (
    PARTING_METHODS,
    PASSING_CALLS,
    DrawnNames,
    is_for_many,
    moves_in,
)
from efprof.facts.step_code import StepCode
from efprof.facts.syntax import MODULE, PlacedNode, called_name, class_of, site_of

DATASETS = frozenset({"TensorDataset", "StackDataset", "DataLoader"})
"""What they are given is a data set by its use."""
SERVING = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__"})
"""Methods that a loader calls, which no line of the user's names."""
KEEPING = frozenset({"append", "extend", "add"})
NO_DATA_CALLS = frozenset({"Parameter", "register_buffer", "register_parameter"})
SIMPLE = (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A variable of a function, or an attribute of `self` in a class; `scope` is the function's or class's name."""

    file: str
    name: str
    scope: str
    is_attribute: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetUse:
    """The calls that move the data, and where samples of it are taken.

    `slices` are the expressions `data[i:j]`, where those are all that is done with it once it is moved, in the function
    that moves it; its length and shape are as they were.
    `is_list` says that each move is made many times, once for a batch.
    """

    moves: tuple[ast.Call, ...]
    use_sites: tuple[str, ...]
    slices: tuple[ast.Subscript, ...]
    is_list: bool


class DatasetUses:
    """Looks for data sets in the files of a program."""

    def __init__(self, code: StepCode) -> None:
        self._code = code
        self._nodes = [(file, placed) for file in code.trees for placed in code.nodes(file)]
        self._models = {  # their classes, by the node: what a model keeps belongs to it
            id(placed.ancestors[-1]) for _, placed in self._nodes
            if isinstance(placed.node, ast.FunctionDef) and placed.node.name == "forward"
            if isinstance(placed.ancestors[-1], ast.ClassDef)
        }  # fmt: skip
        by_function: defaultdict[tuple[str, str], list[PlacedNode]] = defaultdict(list)
        for file, placed in self._nodes:
            by_function[file, placed.function].append(placed)
        self._drawn = {key: DrawnNames(nodes) for key, nodes in by_function.items()}
        self._bound = {
            (file, placed.function, name)
            for file, placed in self._nodes
            if (name := _bound_name(placed.node)) is not None
        }

    def of_line(self, file: str, line: int) -> DatasetUse | None:
        """What the statement on this line puts on the device, if that is a data set; else None."""
        placed = self._statement(file, line)
        if placed is None or self._code.is_in_step(placed) or self._is_in_model(placed):
            return None
        assert isinstance(placed.node, ast.stmt)
        moves = moves_in(placed.node)
        if not moves or _is_parameter(placed.node):
            return None
        if any(called_name(node) in DATASETS and moves_in(node) for node in ast.walk(placed.node)):
            return DatasetUse(moves=tuple(moves), use_sites=(site_of(file, placed),), slices=(), is_list=False)
        holders = self._all_holders(set(self._first_holders(file, placed)))
        mentioned = [(where, node) for where, node in self._nodes if any(self._is(where, node, one) for one in holders)]
        if any(self._is_no_data(node, placed) for _, node in mentioned):
            return None
        uses = [(where, node) for where, node in mentioned if self._is_use(where, node)]
        if not uses:
            return None
        return DatasetUse(
            moves=tuple(moves),
            use_sites=tuple(dict.fromkeys(site_of(where, node) for where, node in uses)),
            slices=only_slices((file, placed), mentioned, uses),
            is_list=is_for_many(placed.node, placed.ancestors),
        )

    def _statement(self, file: str, line: int) -> PlacedNode | None:
        """The innermost one on that line, if it keeps or gives something."""
        found = None
        for placed in self._code.nodes(file):
            if isinstance(placed.node, ast.stmt) and placed.node.lineno <= line <= (placed.node.end_lineno or 0):
                found = placed
        return found if found is not None and isinstance(found.node, SIMPLE) else None

    def _is_in_model(self, placed: PlacedNode) -> bool:
        return any(id(above) in self._models for above in placed.ancestors)

    def _first_holders(self, file: str, placed: PlacedNode) -> Iterator[Holder]:
        """What the statement that moves assigns to, appends to, or returns to."""
        match placed.node:
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from _targets(file, placed, target)
            case ast.AnnAssign(target=target):
                yield from _targets(file, placed, target)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=receiver, attr=method))) if method in KEEPING:
                yield from _targets(file, placed, receiver)
            case ast.Return():
                yield from self._results(placed.function)

    def _all_holders(self, holders: set[Holder]) -> set[Holder]:
        """With all that the same data gets to by being assigned, kept, given or returned."""
        while True:
            found = {
                further
                for where, node in self._nodes
                if any(self._is(where, node, holder) for holder in holders)
                for further in self._further(where, node)
            }
            if found <= holders:
                return holders
            holders |= found

    def _further(self, file: str, placed: PlacedNode) -> Iterator[Holder]:
        node, above = _passed_on(placed)
        while isinstance(above[0], ast.Tuple | ast.List | ast.Dict):
            node = above.pop(0)
        match above[0]:
            case ast.Assign(targets=targets, value=value) if value is node:
                for target in targets:
                    yield from _targets(file, placed, target)
            case ast.AnnAssign(target=target, value=value) if value is node:
                yield from _targets(file, placed, target)
            case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=given) if method in KEEPING:
                if node in given:
                    yield from _targets(file, placed, receiver)
            case ast.Call(args=given) as call if placed.node in given:
                place = given.index(placed.node)
                yield from self._parameters(called_name(call))[place : place + 1]
            case ast.keyword(arg=name):
                yield from (one for one in self._parameters(called_name(above[1])) if one.name == name)
            case ast.Return():
                yield from self._results(placed.function)

    def _parameters(self, name: str) -> list[Holder]:
        """Of the user's function or class by that name, without `self`; none where there are several of that name."""
        found = []
        for file, placed in self._nodes:
            if not isinstance(placed.node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            owner = placed.ancestors[-1]
            is_built = placed.node.name == "__init__" and isinstance(owner, ast.ClassDef) and owner.name == name
            if placed.node.name == name or is_built:
                names = [one.arg for one in (*placed.node.args.posonlyargs, *placed.node.args.args)]
                scope, first = placed.qualified_name(placed.node.name), isinstance(owner, ast.ClassDef)
                found.append([Holder(file=file, name=one, scope=scope) for one in names[first:]])
        return found[0] if len(found) == 1 else []

    def _results(self, function: str) -> Iterator[Holder]:
        """Where what a function returns is kept, by the function's last name."""
        name = function.rpartition(".")[2]
        for file, placed in self._nodes:
            if isinstance(placed.node, ast.Assign) and called_name(placed.node.value) == name:
                yield from (one for target in placed.node.targets for one in _targets(file, placed, target))

    def _is_use(self, file: str, placed: PlacedNode) -> bool:
        """Whether samples are taken of what is mentioned here, in each step or by a loader."""
        if _is_given_to_dataset(placed):
            return True
        node, above = _passed_on(placed)
        if self._is_in_model(placed):
            return False
        match above[0]:
            case ast.Subscript(value=value, slice=index, ctx=ast.Load()) if value is node:
                if placed.function.rpartition(".")[2] in SERVING:
                    return True
                return self._code.is_in_step(placed) and self._drawn[file, placed.function].selects(index)
            case ast.For(iter=iterated) as loop if iterated is node:
                return self._is_step_loop(file, loop)
        return False

    def _is_step_loop(self, file: str, loop: ast.For) -> bool:
        nodes = self._code.nodes(file)
        return any(placed.ancestors[-1] is loop and self._code.is_in_step(placed) for placed in nodes)

    def _is_no_data(self, placed: PlacedNode, made: PlacedNode) -> bool:
        """Whether what is mentioned is a parameter, or is written to while training: a state, cache or workspace."""
        node, above = placed.node, list(reversed(placed.ancestors))
        if called_name(above[0]) in NO_DATA_CALLS:
            return True
        while isinstance(above[0], ast.Subscript) and above[0].value is node:
            node = above.pop(0)
        match above[0]:
            case ast.Attribute(attr=name) if name.startswith("requires_grad"):
                return True
            case ast.Attribute(attr=name):
                is_written = name.endswith("_") and not name.endswith("__")
            case ast.AugAssign(target=target) if target is node:
                is_written = True
            case _:
                is_written = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        is_before = placed.function == made.function and not self._code.is_in_step(placed)
        return is_written and not is_before

    def _is(self, file: str, placed: PlacedNode, holder: Holder) -> bool:
        """Whether a node is that variable, as far as names tell."""
        match placed.node:
            case ast.Attribute(attr=name, value=ast.Name(id="self")) if holder.is_attribute:
                return name == holder.name and (file, class_of(placed)) == (holder.file, holder.scope)
            case ast.Attribute(attr=name) if holder.is_attribute:
                return name == holder.name != "data"  # any tensor has that one
            case ast.Name(id=name) if not holder.is_attribute and (name, file) == (holder.name, holder.file):
                is_outer = holder.scope == MODULE or placed.function.startswith(holder.scope + ".<locals>.")
                is_hidden = (file, placed.function, name) in self._bound
                return placed.function == holder.scope or (is_outer and not is_hidden)
        return False


def _passed_on(placed: PlacedNode) -> tuple[ast.AST, list[ast.AST]]:
    """The widest expression that is still the data, in parts or an item by its name; and what is above it."""
    node, above = placed.node, list(reversed(placed.ancestors))
    while True:
        match above[0]:
            case ast.Subscript(value=value, slice=ast.Constant()) if value is node:
                pass
            case ast.Call(args=given) if called_name(above[0]) in PASSING_CALLS | PARTING_METHODS and node in given:
                pass
            case ast.Call(func=function) if function is node:
                pass
            case ast.Attribute(attr=name) if name in PARTING_METHODS:
                pass
            case ast.IfExp(test=test) if test is not node:
                pass
            case _:
                return node, above
        node = above.pop(0)


def _bound_name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
    return None


def _targets(file: str, placed: PlacedNode, target: ast.expr) -> Iterator[Holder]:
    match target:
        case ast.Name(id=name):
            yield Holder(file=file, name=name, scope=placed.function)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            yield Holder(file=file, name=name, scope=class_of(placed), is_attribute=True)
        case ast.Subscript(value=inner) | ast.Starred(value=inner):
            yield from _targets(file, placed, inner)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _targets(file, placed, part)


def _is_given_to_dataset(placed: PlacedNode) -> bool:
    """Whether the node itself is an argument, alone or in a list of them; not `len(data)` within one."""
    above = list(reversed(placed.ancestors))
    while isinstance(above[0], ast.Tuple | ast.List | ast.Starred | ast.keyword):
        above.pop(0)
    return called_name(above[0]) in DATASETS


def _is_parameter(statement: ast.stmt) -> bool:
    return any(
        (isinstance(node, ast.keyword) and node.arg == "requires_grad") or called_name(node) in NO_DATA_CALLS
        for node in ast.walk(statement)
    )
