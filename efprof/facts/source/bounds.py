"""Whether the program's code takes out of a container, or tests its length: a short run may see such a one fill up."""

import ast
from collections.abc import Set

from efprof.facts.source.loops import LOOPS
from efprof.facts.source.sources import Sources, name_of, placed_nodes, split_site
from efprof.model import called_name, nodes_on

TAKES_OUT = frozenset({"pop", "popleft", "popitem", "clear", "remove"})


def names_in_code(sources: Sources, name: str, site: str | None) -> set[str]:
    """What the program calls it: by `name`, and at `site`, the line that feeds it."""
    names = {name.partition("[")[0].rpartition(".")[2]}
    if site is not None:
        file, line, _ = split_site(site)
        for node in nodes_on(sources.tree(file), line):
            match node:
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=fed))):  # what a method is called of
                    names |= {name_of(fed) or ""} - {"self", ""}
    return names


def is_bounded_by_code(sources: Sources, names: Set[str], kind: str, files: Set[str]) -> bool:
    """True if a statement takes out of it, tests its length or empties it; `kind` may be a class that does so."""
    return any(_bounds(sources.tree(file), names) or _bounds_itself(sources.tree(file), kind) for file in files)


def is_kept_by_item(sources: Sources, names: Set[str], files: Set[str]) -> bool:
    """True if a `__getitem__` puts in what it is asked for by its index, as a data set's cache: one entry for each."""
    return any(
        name_of(node.value) in names
        and placed.function.endswith(".__getitem__")
        and any(isinstance(one, ast.Name) and one.id in placed.arguments - {"self"} for one in ast.walk(node.slice))
        and not any(isinstance(one, ast.Call) for one in ast.walk(node.slice))  # of `id(...)` there is no end
        for file in files
        for placed in placed_nodes(sources.tree(file))
        if isinstance(node := placed.node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    )


def _bounds(tree: ast.AST, names: Set[str]) -> bool:
    loops = [node for node in ast.walk(tree) if isinstance(node, LOOPS)]
    in_loop = any(_makes_empty(node, names) for loop in loops for node in ast.walk(loop))
    in_method = any(
        _makes_empty(placed.node, names) and ast.unparse(placed.node).startswith("self.")
        for placed in placed_nodes(tree)
        if not placed.function.endswith("__init__")
    )
    return in_loop or in_method or any(_takes_out(node, names) for node in ast.walk(tree))


def _bounds_itself(tree: ast.Module, kind: str) -> bool:
    """True if it is of a class of the program's, a `dict` for one, that takes out of itself."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind]
    return any(_takes_out(node, {"self"}) for one in classes for node in ast.walk(one))


def _takes_out(node: ast.AST, names: Set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in TAKES_OUT:
            return name_of(receiver) in names
        case ast.Delete(targets=targets):
            return any(isinstance(one, ast.Subscript) and name_of(one.value) in names for one in targets)
        case ast.Assign(targets=[ast.Subscript(value=inner, slice=ast.Slice())]):
            return name_of(inner) in names
        case ast.Assign(targets=[target], value=ast.Subscript(value=inner, slice=ast.Slice())):
            return name_of(target) in names and name_of(inner) in names
        case ast.Compare(left=left, comparators=[right]):
            lengths = [one.args[0] for one in (left, right) if isinstance(one, ast.Call) and called_name(one) == "len"]
            is_zero = any(isinstance(one, ast.Constant) and not one.value for one in (left, right))
            return not is_zero and any(name_of(one) in names for one in lengths)
    return False


def _makes_empty(node: ast.AST, names: Set[str]) -> bool:
    match node:
        case ast.Assign(targets=[target], value=ast.List(elts=[]) | ast.Dict(keys=[])):
            return name_of(target) in names
    return False
