"""Whether the program's code takes out of a container, or tests its length: a short run may see such a one fill up."""

import ast
from collections import defaultdict
from collections.abc import Set
from functools import lru_cache

from efprof.facts.source.loops import LOOPS
from efprof.facts.source.sources import MODULE, Sources, name_of, placed_nodes, split_site
from efprof.model import called_name, spans

TAKES_OUT = frozenset({"pop", "popleft", "popitem", "clear", "remove"})
MAKES_EMPTY = frozenset({"list", "dict", "set", "deque", "OrderedDict", "defaultdict", "Counter"})
ATTRIBUTE = "attribute"

_Variable = tuple[str, str | None]
"""Its name, and the function it is local to, MODULE or ATTRIBUTE; None where it may be any of that name: an argument,
what is declared `global`."""


def is_bounded_by_code(sources: Sources, name: str, within: str, kind: str, files: Set[str], site: str | None) -> bool:
    """True if a statement takes out of `name`, tests its length or empties it; `kind` may be a class that does so.

    `within` is the function it is local to, MODULE of a global or ATTRIBUTE: others of that name are others. Looks in
    these files, and knows it too by the name at `site`, the line that feeds it.
    """
    name, trees = _last_part(name), [sources.tree(file) for file in files]
    kept = {(name, within if within == ATTRIBUTE else _scope_of(tree, name, within)) for tree in trees}
    if site is not None:
        file, line, _ = split_site(site)
        for placed in placed_nodes(sources.tree(file)):
            match placed.node:
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=fed))) as call if spans(call, line):
                    kept.add(_variable(sources.tree(file), fed, placed.function))  # what a method is called of
    kept -= {one for one in kept if one[0] in ("self", "")}
    return any(_bounds(tree, _nodes_of(tree, kept)) or _bounds_itself(tree, kind) for tree in trees)


def is_kept_by_item(sources: Sources, name: str, files: Set[str]) -> bool:
    """True if a `__getitem__` puts in what it is asked for by its index, as a data set's cache: one entry for each."""
    return any(
        name_of(node.value) == _last_part(name)
        and placed.function.endswith(".__getitem__")
        and any(isinstance(one, ast.Name) and one.id in placed.arguments - {"self"} for one in ast.walk(node.slice))
        and not any(isinstance(one, ast.Call) for one in ast.walk(node.slice))  # of `id(...)` there is no end
        for file in files
        for placed in placed_nodes(sources.tree(file))
        if isinstance(node := placed.node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    )


def _last_part(name: str) -> str:
    return name.partition("[")[0].rpartition(".")[2]


def _bounds(tree: ast.AST, nodes: Set[ast.AST]) -> bool:
    loops = [node for node in ast.walk(tree) if isinstance(node, LOOPS)]
    in_loop = any(_emptied(node) & nodes for loop in loops for node in ast.walk(loop))
    in_method = any(
        isinstance(target, ast.Attribute) and name_of(target.value) == "self"
        for placed in placed_nodes(tree)
        if not placed.function.endswith("__init__")
        for target in _emptied(placed.node) & nodes
    )
    return in_loop or in_method or any(_takes_out(node, nodes) for node in ast.walk(tree))


def _bounds_itself(tree: ast.Module, kind: str) -> bool:
    """True if it is of a class of the program's, a `dict` for one, that takes out of itself."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind]
    nodes = [node for one in classes for node in ast.walk(one)]
    own = {node for node in nodes if name_of(node) == "self"}
    return any(_takes_out(node, own) for node in nodes)


def _nodes_of(tree: ast.Module, kept: Set[_Variable]) -> set[ast.AST]:
    """Where the code has one of these."""
    found = set[ast.AST]()
    for placed in placed_nodes(tree):
        name, scope = _variable(tree, placed.node, placed.function)
        scopes = {other for one, other in kept if one == name}
        if scopes & {scope, None} or (scopes and scope is None):
            found.add(placed.node)
    return found


def _variable(tree: ast.Module, expression: ast.AST, function: str) -> _Variable:
    match expression:
        case ast.Subscript(value=inner):
            return _variable(tree, inner, function)
        case ast.Name(id=name):
            return name, _scope_of(tree, name, function)
    return name_of(expression) or "", ATTRIBUTE


def _scope_of(tree: ast.Module, name: str, function: str) -> str | None:
    """The function, this one or one around it, that the name is local to, as in a _Variable."""
    while function:
        names = _local_names(tree).get(function, {})
        if name in names:
            return names[name]
        function = function.rpartition(".<locals>.")[0]
    return MODULE


@lru_cache(maxsize=256)
def _local_names(tree: ast.Module) -> dict[str, dict[str, str | None]]:
    """What each function binds, and its scope as in a _Variable."""
    found = defaultdict[str, dict[str, str | None]](dict)
    for placed in placed_nodes(tree):
        function = placed.function
        match placed.node:
            case ast.arg(arg=name):
                found[function][name] = None
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found[function] |= dict.fromkeys(names)
            case ast.Name(id=name, ctx=ast.Store()):
                found[function].setdefault(name, function)
    return found


def _takes_out(node: ast.AST, nodes: Set[ast.AST]) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in TAKES_OUT:
            return receiver in nodes
        case ast.Delete(targets=targets):
            return any(isinstance(one, ast.Subscript) and one.value in nodes for one in targets)
        case ast.Assign(targets=[ast.Subscript(value=inner, slice=ast.Slice())]):
            return inner in nodes
        case ast.Assign(targets=[target], value=ast.Subscript(value=inner, slice=ast.Slice())):
            return target in nodes and inner in nodes
        case ast.Compare(left=left, comparators=[right]):
            lengths = [one.args[0] for one in (left, right) if isinstance(one, ast.Call) and called_name(one) == "len"]
            is_zero = any(isinstance(one, ast.Constant) and not one.value for one in (left, right))
            return not is_zero and any(one in nodes for one in lengths)
    return False


def _emptied(node: ast.AST) -> set[ast.AST]:
    """What an assignment gives an empty container: `a, b = [], {}`, `a = b = []`."""
    if not isinstance(node, ast.Assign):
        return set()
    found = set[ast.AST]()
    for target in node.targets:
        match target, node.value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                pairs = list(zip(targets, values, strict=False))
            case _:
                pairs = [(target, node.value)]
        found |= {one for one, value in pairs if _is_empty(value)}
    return found


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(args=[]):
            return called_name(value) in MAKES_EMPTY
        case ast.Call(args=[ast.Name()]):  # `defaultdict(list)`
            return called_name(value) == "defaultdict"
    return False
