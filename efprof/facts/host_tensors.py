"""Which lines cut by numbers of a tensor that the program makes on the CPU, on whatever device it trains."""

import ast
import re
from collections.abc import Iterator, Sequence

from efprof.facts.sources import Sources
from efprof.facts.syntax import called_name, mentions, placed_nodes
from efprof.model import SourceLine

MAKERS = frozenset({"arange", "rand", "randint", "randn", "randperm", "tensor"})
"""Functions of torch that make a tensor on the CPU unless they are told a device, or given a tensor."""
ELSEWHERE = re.compile(r"\bset_default_(device|tensor_type)\b|^\s*(async )?with (?!torch\.cuda\.)(\w+\.)*\w*device\b")
"""Where a program says so, a tensor made without a device may lie anywhere."""
PLAIN_NUMBERS = frozenset({"int", "len", "max", "min", "range", "round"})
"""What these give is no tensor; what `int` reads is looked at by itself."""


def is_cut_on_host(line: SourceLine, sources: Sources) -> bool:
    """Whether every number that a slice of `line` is bounded by comes from a tensor made on the CPU.

    As in `torch.stack([data[i : i + length] for i in starts])` below `starts = torch.randint(...)`: many trainers
    cut their batches so, and what lies on the CPU is read without waiting for a GPU. False where any other call of
    the function makes one of these names: what it gives may lie on the device; and where the line reads another
    tensor by `int`. Parameters and attributes beside such names, as `length` here, are taken for plain
    numbers: the text does not tell.
    """
    tree = sources.tree(line.file)
    if tree is None or any(ELSEWHERE.search(text) for lines in sources.files.values() for text in lines):
        return False
    nested = f"{line.function}.<locals>."
    inside = [one.node for one in placed_nodes(tree) if f"{one.function}.<locals>.".startswith(nested)]
    here = [
        node
        for node in inside
        if isinstance(node, ast.stmt) and node.lineno <= line.line <= (node.end_lineno or node.lineno)
    ]
    if not here:
        return False
    nodes = list(ast.walk(max(here, key=lambda node: node.lineno)))
    bounds = [bound for node in nodes if isinstance(node, ast.Slice) for bound in ast.iter_child_nodes(node)]
    reads = [node.args for node in nodes if isinstance(node, ast.Call) and called_name(node) == "int"]
    return _are_made_on_host(bounds, inside) and all(_are_made_on_host(read, inside) for read in reads)


def _are_made_on_host(values: Sequence[ast.AST], inside: Sequence[ast.AST]) -> bool:
    """Whether the CPU made all that calls made of these expressions and the names in them, and anything is."""
    names = _names_in(values)
    drawn_from = [
        node.iter
        for node in inside
        if isinstance(node, ast.comprehension | ast.For) and any(mentions(node.target, name) for name in names)
    ]
    names |= _names_in(drawn_from)
    made = [
        node.value
        for node in inside
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if any(mentions(target, name) for name in names)
    ]
    calls = [call for value in (*values, *drawn_from, *made) for call in _outermost_calls(value)]
    return bool(calls) and all(map(_is_made_on_host, calls))


def _names_in(values: Sequence[ast.AST]) -> set[str]:
    return {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}


def _outermost_calls(value: ast.AST) -> Iterator[ast.Call]:
    """But for those that give plain numbers."""
    if isinstance(value, ast.Call):
        if not (isinstance(value.func, ast.Name) and value.func.id in PLAIN_NUMBERS):
            yield value
    else:
        for child in ast.iter_child_nodes(value):
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
