"""Whether the program goes on with the number that a line reads, so that the read cannot wait, as far as text tells."""

import ast
from collections.abc import Iterator
from typing import Literal

from efprof.facts.sources import Sources
from efprof.facts.syntax import PlacedNode, called_name, placed_nodes
from efprof.model import SourceLine

READING_METHODS = frozenset({"item", "tolist", "cpu", "numpy"})
READING_FUNCTIONS = frozenset({"float", "int", "bool"})
PASSING_FUNCTIONS = READING_FUNCTIONS | {
    "abs", "array", "asarray", "format", "isfinite", "isinf", "isnan", "list", "max", "min", "round", "str", "sum",
    "tuple",
}  # fmt: skip
"""What they give is needed where it is needed, not by them; so too what these modules have."""
PASSING_MODULES = frozenset({"math", "np", "numpy"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SHOWING_FUNCTIONS = frozenset(
    {"print", "log", "debug", "info", "warning", "write", "add_scalar", "set_postfix", "set_description"}
)

Need = tuple[Literal["branch", "call"], str]
"""What cannot go on without the number: a branch, or a call and what it calls."""


def need_for_read(line: SourceLine, sources: Sources) -> Need | None:
    """Who needs what `line` reads before the step can go on; None where it is only kept, added up or shown.

    A call needs it whose result is used, as in `state = env.step(action.item())`; a branch, as in `if loss.item() > 3`.
    A number that is bound to a name is followed to the same loop's later lines, one that is returned to the callers.
    """
    return _Needs(sources).of_line(line)


class _Needs:
    def __init__(self, sources: Sources) -> None:
        trees = {file: tree for file in sources.files if (tree := sources.tree(file)) is not None}
        self._nodes = {file: list(placed_nodes(tree)) for file, tree in trees.items()}
        self._followed: set[int] = set()

    def of_line(self, line: SourceLine) -> Need | None:
        nodes = self._nodes.get(line.file, [])
        return _first(self._need(line.file, one) for one in nodes if _is_read(one.node, line.line))

    def _need(self, file: str, placed: PlacedNode) -> Need | None:
        """By what lies around the expression, up to its statement."""
        child, place = placed.node, None
        for above in reversed(placed.ancestors):
            match above:
                case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test) if (
                    child is test
                ):
                    return "branch", ""
                case ast.comprehension(ifs=tests) if child in tests:
                    return "branch", ""
                case ast.Call(func=callee) if child is not callee and not _passes_on(above):
                    return None if _is_kept_or_shown(above, placed) else ("call", ast.unparse(callee))
                case ast.Tuple(elts=parts) if child in parts:
                    place = parts.index(child)
                case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
                    return self._need_of_name(file, placed, target)
                case ast.Return():
                    return self._need_of_result(placed.function.rpartition(".")[2], place)
                case ast.stmt() | ast.Dict() | ast.Lambda():
                    return None
            child = above
        return None

    def _need_of_name(self, file: str, placed: PlacedNode, target: ast.expr) -> Need | None:
        """Of the later uses of a name within the innermost loop that binds it; of a sum that it is added to, none."""
        bound = next(above for above in reversed(placed.ancestors) if isinstance(above, ast.stmt))
        if not isinstance(target, ast.Name) or id(target) in self._followed:
            return None
        self._followed.add(id(target))
        loop = _loop_around(placed)
        uses = [
            one
            for one in self._nodes[file]
            if _is_use(one.node, target.id, bound.lineno)
            and one.function == placed.function
            and (loop is None or loop in one.ancestors)
            and placed.node not in one.ancestors  # `action = action.item()` reads what had the name before
        ]
        if any(bound in one.ancestors for one in uses):
            return None
        return _first(self._need(file, one) for one in uses)

    def _need_of_result(self, name: str, place: int | None) -> Need | None:
        """Of what a function gives to its callers; of a tuple, at its place."""
        for file, nodes in self._nodes.items():
            for call in nodes:
                if called_name(call.node) != name or id(call.node) in self._followed:
                    continue
                self._followed.add(id(call.node))
                need = self._need(file, call) if place is None else self._need_of_part(file, call, place)
                if need is not None:
                    return need
        return None

    def _need_of_part(self, file: str, call: PlacedNode, place: int) -> Need | None:
        match call.ancestors[-1]:
            case ast.Assign(targets=[ast.Tuple(elts=targets)]) if place < len(targets):
                return self._need_of_name(file, call, targets[place])
        return None


def _is_read(node: ast.AST, line: int) -> bool:
    if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or node.lineno):
        return False
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=[]):
            return name in READING_METHODS
        case ast.Call(func=ast.Name(id=name), args=[_]):
            return name in READING_FUNCTIONS
    return False


def _passes_on(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module))) if module in PASSING_MODULES:
            return True
    return called_name(call) in PASSING_FUNCTIONS


def _is_kept_or_shown(call: ast.Call, placed: PlacedNode) -> bool:
    """Whether nobody uses what the call gives, or only what prints or logs it; a dictionary is for either."""
    outside = placed.ancestors[: placed.ancestors.index(call)]
    is_shown = any(called_name(above) in SHOWING_FUNCTIONS for above in outside)
    return isinstance(outside[-1], ast.Expr) or is_shown or called_name(call) == "dict"


def _is_use(node: ast.AST, name: str, first_line: int) -> bool:
    match node:
        case ast.Name(id=used, ctx=ast.Load(), lineno=line):
            return used == name and line >= first_line
    return False


def _loop_around(placed: PlacedNode) -> ast.AST | None:
    return next((above for above in reversed(placed.ancestors) if isinstance(above, LOOPS)), None)


def _first(needs: Iterator[Need | None]) -> Need | None:
    return next((need for need in needs if need is not None), None)
