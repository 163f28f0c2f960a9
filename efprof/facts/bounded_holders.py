"""Whether a program bounds a container by itself: then it fills up, and is no leak."""

import ast
from collections.abc import Iterator

from efprof.facts.holder_lines import HolderGrowth
from efprof.facts.sources import Sources
from efprof.facts.syntax import name_of, placed_nodes

TAKING_OUT = frozenset({"pop", "popleft", "popitem", "clear"})


def is_bounded(growth: HolderGrowth, sources: Sources) -> bool:
    """Whether it is made with a `maxlen`, has entries taken out, or is asked for its length in a condition."""
    return any(
        _bounds(node, growth.holder.name)
        for file in sources.files
        if (tree := sources.tree(file)) is not None
        for node in (placed.node for placed in placed_nodes(tree))
    )


def _bounds(node: ast.AST, name: str) -> bool:
    match node:
        case (
            ast.Assign(targets=[target], value=ast.Call(keywords=keywords))
            | ast.AnnAssign(target=target, value=ast.Call(keywords=keywords))
        ):
            return name_of(target) == name and any(keyword.arg == "maxlen" for keyword in keywords)
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)):
            return method in TAKING_OUT and name_of(receiver) == name
        case ast.Delete(targets=targets):
            return any(isinstance(target, ast.Subscript) and name_of(target.value) == name for target in targets)
        case ast.Compare():
            return any(name_of(measured) == name for measured in _measured(node))
    return False


def _measured(comparison: ast.Compare) -> Iterator[ast.expr]:
    """What `len(...)` is asked of on either side."""
    for side in (comparison.left, *comparison.comparators):
        match side:
            case ast.Call(func=ast.Name(id="len"), args=[measured]):
                yield measured
