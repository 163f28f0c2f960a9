"""Which lines cut by numbers of a tensor that the program makes on the CPU, on whatever device it trains."""

import ast
from collections.abc import Iterator

from efprof.facts.sources import Sources
from efprof.facts.syntax import mentions, placed_nodes
from efprof.model import SourceLine

MAKERS = frozenset({"arange", "rand", "randint", "randn", "randperm", "tensor"})
"""Functions of torch that make a tensor on the CPU unless they are told a device."""
DEFAULT_DEVICE = ("set_default_device", "set_default_tensor_type")
"""Where a program calls one of these, a tensor made without a device may lie anywhere."""
PLAIN_NUMBERS = frozenset({"int", "len", "max", "min", "range", "round"})
"""What these give is no tensor, or was counted as a read of its own."""


def is_cut_on_host(line: SourceLine, sources: Sources) -> bool:
    """Whether every number that a slice of `line` is bounded by comes from a tensor made on the CPU.

    As in `torch.stack([data[i : i + length] for i in starts])` below `starts = torch.randint(...)`: many trainers
    cut their batches so, and what lies on the CPU is read without waiting for a GPU. False where any other call of
    the function makes one of these names: what it gives may lie on the device.
    """
    tree = sources.tree(line.file)
    if tree is None or any(name in "\n".join(sources.files[line.file]) for name in DEFAULT_DEVICE):
        return False
    nested = f"{line.function}.<locals>."
    inside = [
        placed.node
        for placed in placed_nodes(tree)
        if placed.function == line.function or placed.function.startswith(nested)
    ]
    origins = [origin for name in _bounds(_statement_at(line.line, inside)) for origin in _origins(name, inside)]
    return bool(origins) and all(_is_made_on_host(origin) for origin in origins)


def _statement_at(line: int, inside: list[ast.AST]) -> ast.AST | None:
    """The innermost statement of that line."""
    around = [
        node
        for node in inside
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _bounds(statement: ast.AST | None) -> set[str]:
    """The names in the bounds of a statement's slices: `i` and `length` of `data[i : i + length]`."""
    slices = [node for node in ast.walk(statement) if isinstance(node, ast.Slice)] if statement else []
    return {node.id for one in slices for node in ast.walk(one) if isinstance(node, ast.Name)}


def _origins(name: str, inside: list[ast.AST], *, is_drawn: bool = False) -> Iterator[ast.Call]:
    """The calls that made what a name stands for, or what it is drawn from one by one."""
    for node in inside:
        match node:
            case ast.Assign(targets=targets, value=value) if any(mentions(target, name) for target in targets):
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
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), keywords=keywords):
            return name in MAKERS and not any(keyword.arg in (None, "device") for keyword in keywords)
    return False
