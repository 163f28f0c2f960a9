"""The statement that made the data which a line hands to a model, where that can make NaN of sound data."""

import ast

from efprof.facts.sources import Sources
from efprof.facts.syntax import MODULE, called_name, name_of, placed_nodes
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
    inside = [one.node for one in placed_nodes(tree) if one.function == (line.function or MODULE)] if tree else []
    calls = [node for node in inside if isinstance(node, ast.Call) and first <= node.lineno <= line.line]
    passed = [(given.id, given.lineno) for call in calls for given in call.args if isinstance(given, ast.Name)]
    made = 0
    for node in inside:
        if isinstance(node, ast.Assign | ast.AugAssign) and node.lineno < line.line and _is_singular(node):
            target = name_of(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            if any(name == target and at > node.lineno for name, at in passed):
                made = max(made, node.lineno)
    return sources.line(f"{line.file}:{made}:{line.function}") if made else None


def _is_singular(statement: ast.Assign | ast.AugAssign) -> bool:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div | ast.Pow):
        return True
    for node in ast.walk(statement.value):
        match node:
            case ast.BinOp(op=ast.Div(), right=right) if not isinstance(right, ast.Constant):
                return True
            case ast.Constant(value="nan" | "NaN" | "inf") | ast.Attribute(attr="nan" | "inf"):
                return True
        if called_name(node) in SINGULAR_CALLS:
            return True
    return False
