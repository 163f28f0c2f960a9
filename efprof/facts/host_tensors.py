"""Which lines cut by numbers of a tensor that the program makes on the CPU, on whatever device it trains."""

import ast
from collections.abc import Iterator

from efprof.facts.sources import Sources
from efprof.facts.syntax import mentions, placed_nodes
from efprof.model import SourceLine

MAKERS = frozenset({"arange", "rand", "randint", "randn", "randperm", "tensor"})
"""Functions of torch that make a tensor on the CPU unless they are told a device, or given a tensor."""
DEFAULT_DEVICE = ("set_default_device", "set_default_tensor_type")
"""Where a program calls one of these, a tensor made without a device may lie anywhere."""
PLAIN_NUMBERS = frozenset({"int", "len", "max", "min", "range", "round"})
"""What these give is no tensor, or was counted as a read of its own."""
READING_CALLS, READING_METHODS = frozenset({"bool", "float", "int"}), frozenset({"item", "tolist"})


def is_cut_on_host(line: SourceLine, sources: Sources) -> bool:
    """Whether every number that a slice of `line` is bounded by comes from a tensor made on the CPU.

    As in `torch.stack([data[i : i + length] for i in starts])` below `starts = torch.randint(...)`: many trainers
    cut their batches so, and what lies on the CPU is read without waiting for a GPU. False where any other call of
    the function makes one of these names: what it gives may lie on the device; and where the line reads another
    tensor by `int` or `item`. Parameters and attributes beside such names, as `length` here, are taken for plain
    numbers: the text does not tell.
    """
    tree = sources.tree(line.file)
    if tree is None or _may_be_made_elsewhere(sources):
        return False
    nested = f"{line.function}.<locals>."
    inside = [
        placed.node
        for placed in placed_nodes(tree)
        if placed.function == line.function or placed.function.startswith(nested)
    ]
    statement = _statement_at(line.line, inside)
    if statement is None:
        return False
    bounds = _bounds(statement)
    reads = [read for node in ast.walk(statement) if (read := _read_by(node)) is not None]
    called = [call for bound in bounds for call in _outermost_calls(bound) if _read_by(call) is None]
    return (
        _are_made_on_host(bounds, inside)
        and all(_are_made_on_host([read], inside) for read in reads)
        and all(_is_made_on_host(call) for call in called)
    )


def _may_be_made_elsewhere(sources: Sources) -> bool:
    """Whether any file sets another device than the CPU for what is made without one, for good or in a block."""
    if any(name in text for lines in sources.files.values() for text in lines for name in DEFAULT_DEVICE):
        return True
    trees = [tree for file in sources.files if (tree := sources.tree(file)) is not None]
    return any(
        _is_device(item.context_expr)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
    )


def _is_device(context: ast.expr) -> bool:
    """`with torch.device(...)`, `with device`; `with torch.cuda.device(1)` leaves the CPU what it is."""
    match context:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="torch"), attr=name)):
            return name == "device"
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "device" in name
    return False


def _statement_at(line: int, inside: list[ast.AST]) -> ast.AST | None:
    """The innermost statement of that line."""
    around = [
        node
        for node in inside
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _bounds(statement: ast.AST) -> list[ast.expr]:
    """Those of a statement's slices: `i` and `i + length` of `data[i : i + length]`."""
    slices = [node for node in ast.walk(statement) if isinstance(node, ast.Slice)]
    return [bound for one in slices for bound in (one.lower, one.upper, one.step) if bound is not None]


def _read_by(node: ast.AST) -> ast.expr | None:
    """What `int(x)` or `x.item()` reads; None of any other node."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[read]) if name in READING_CALLS:
            return read
        case ast.Call(func=ast.Attribute(value=read, attr=name), args=[]) if name in READING_METHODS:
            return read
    return None


def _are_made_on_host(values: list[ast.expr], inside: list[ast.AST]) -> bool:
    """Whether the CPU made what is known of the names in them, and anything is."""
    names = {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}
    origins = [origin for name in names for origin in _origins(name, inside)]
    return bool(origins) and all(_is_made_on_host(origin) for origin in origins)


def _origins(name: str, inside: list[ast.AST], *, is_drawn: bool = False) -> Iterator[ast.Call]:
    """The calls that made what a name stands for, or what it is drawn from one by one."""
    for node in inside:
        match node:
            case ast.Assign(targets=targets, value=value) if any(mentions(target, name) for target in targets):
                yield from _outermost_calls(value)
            case (
                ast.AugAssign(target=target, value=value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ) if mentions(target, name):
                yield from _outermost_calls(value)
            case ast.comprehension(target=target, iter=drawn_from) | ast.For(target=target, iter=drawn_from) if (
                not is_drawn and mentions(target, name)
            ):
                yield from _outermost_calls(drawn_from)
                if isinstance(drawn_from, ast.Name):
                    yield from _origins(drawn_from.id, inside, is_drawn=True)


def _outermost_calls(value: ast.expr) -> Iterator[ast.Call]:
    match value:
        case ast.Call(func=ast.Name(id=name)) if name in PLAIN_NUMBERS:
            return
        case ast.Call():
            yield value
        case _:
            for child in ast.iter_child_nodes(value):
                if isinstance(child, ast.expr):
                    yield from _outermost_calls(child)


def _is_made_on_host(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="tensor"), args=[given, *_]) if (
            not isinstance(given, ast.Constant | ast.List | ast.Tuple | ast.ListComp)
        ):
            return False  # what is copied from a tensor lies where that lies
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), keywords=keywords):
            return name in MAKERS and not any(keyword.arg in (None, "device") for keyword in keywords)
    return False
