"""The statement that made the data which a line hands to a model, where that can make NaN of sound data."""

import ast
from collections.abc import Iterator

from efprof.facts.sources import Sources
from efprof.facts.syntax import MODULE, PlacedNode, name_of, placed_nodes
from efprof.model import SourceLine

SINGULAR_CALLS = frozenset(
    {"log", "log2", "log10", "sqrt", "rsqrt", "div", "div_", "pow", "acos", "asin", "std", "exp"}
)
"""Operations without a finite value for some finite operands; outside of autograd nothing records their results."""


def data_origin(line: SourceLine, backward: SourceLine | None, sources: Sources) -> SourceLine | None:
    """The last statement that divides, roots or logs to make a name that `line` passes on.

    Where `line` lies in a model, whose inputs have other names outside, that of a name which any call above the line of
    `backward` is given. None where there is no such statement: the data came bad from where it was read.
    """
    found = _made_above(line, sources, line.line)
    if found is None and backward is not None and backward.function != line.function:
        return _made_above(backward, sources, 1)
    return found


def _made_above(line: SourceLine, sources: Sources, first: int) -> SourceLine | None:
    """The last such statement above `line` in its function; its name is passed on below it, from line `first` on."""
    tree = sources.tree(line.file)
    if tree is None:
        return None
    inside = [placed for placed in placed_nodes(tree) if placed.function == (line.function or MODULE)]
    passed = list(_arguments_in(inside, first, line.line))
    made = [
        placed.node.lineno
        for placed in inside
        if isinstance(placed.node, ast.Assign | ast.AugAssign)
        if placed.node.lineno < line.line and _is_singular(placed.node)
        if any(name == _target_of(placed.node) and at > placed.node.lineno for name, at in passed)
    ]
    return sources.line(f"{line.file}:{max(made)}:{line.function}") if made else None


def _arguments_in(inside: list[PlacedNode], first: int, last: int) -> Iterator[tuple[str, int]]:
    """Every name that a call is given in those lines, and the line."""
    for placed in inside:
        if isinstance(placed.node, ast.Call) and first <= placed.node.lineno <= last:
            yield from (
                (argument.id, argument.lineno) for argument in placed.node.args if isinstance(argument, ast.Name)
            )


def _target_of(statement: ast.Assign | ast.AugAssign) -> str | None:
    return name_of(statement.targets[0] if isinstance(statement, ast.Assign) else statement.target)


def _is_singular(statement: ast.Assign | ast.AugAssign) -> bool:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div | ast.Pow):
        return True
    for node in ast.walk(statement.value):
        match node:
            case ast.BinOp(op=ast.Div(), right=right) if not isinstance(right, ast.Constant):
                return True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in SINGULAR_CALLS:
                return True
            case ast.Constant(value="nan" | "NaN" | "inf") | ast.Attribute(attr="nan" | "inf"):
                return True
    return False
