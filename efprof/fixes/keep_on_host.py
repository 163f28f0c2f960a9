"""The edits that keep a data set on the host: `data = data.to(device)` becomes `data = data.pin_memory()`."""

import ast
from collections.abc import Sequence

from efprof.model import CodeEdit


def keep_on_host(file: str, lines: Sequence[str], tree: ast.Module | None, line: int) -> tuple[CodeEdit, ...]:
    """The edits of the moves in the assignment on this line, and of each slice `data[i:j]` below it, moved instead.

    None where the moves name several devices, or anything else is done with the data: that may need it on the device,
    as `model(data)` and `data.mean(0)`, or hand it on in ways that no edit of one expression can follow.
    """
    nodes = list(ast.walk(tree)) if tree else []
    moved = next((one for one in nodes if isinstance(one, ast.Assign) and one.lineno == line == one.end_lineno), None)
    if moved is None:
        return ()
    functions = (one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    around = [one for one in functions if one.lineno <= line <= (one.end_lineno or line)]
    slices = _slices(nodes, set(ast.walk(around[-1])) if around else set(nodes), moved)
    calls = [node for node in ast.walk(moved.value) if isinstance(node, ast.Call)]
    moves = [(call, _device_of(call)) for call in calls if getattr(call.func, "attr", "") in ("to", "cuda")]
    if not slices or len({device for _, device in moves}) != 1 or moves[0][1] is None:
        return ()
    texts = {number: lines[number - 1].encode() for number in (line, *(one.lineno for one in slices))}
    puts: list[tuple[ast.expr, int, str]] = [
        (one, one.end_col_offset or 0, f".to({moves[0][1]}, non_blocking=True)") for one in slices
    ]
    puts += [(one, _dot_of(one, texts[line]), ".pin_memory()") for one, _ in moves]
    for one, start, new in sorted(puts, key=lambda put: -put[1]):  # syntax trees count bytes of UTF-8
        text = texts[one.lineno]
        texts[one.lineno] = text[:start] + new.encode() + text[one.end_col_offset :]
    return tuple(
        CodeEdit(file=file, line=number, old=lines[number - 1], new=text.decode())
        for number, text in sorted(texts.items())
    )


def _slices(nodes: Sequence[ast.AST], inside: set[ast.AST], moved: ast.Assign) -> list[ast.Subscript]:
    """All slices of the data; none where something else is done with it, or in another function."""
    names = {node.id for target in moved.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    same_anywhere, taken = set(ast.walk(moved)), dict[ast.AST, ast.Subscript]()
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name() as name, slice=ast.Slice(), ctx=ast.Load()) if (
                node in inside and moved.lineno < node.lineno == node.end_lineno
            ):
                taken[name] = node
            case ast.Call(func=ast.Name(id="len"), args=[name]) | ast.Attribute(value=name, attr="shape" | "size"):
                same_anywhere.add(name)
    reads = [node for node in nodes if isinstance(node, ast.Name) and node.id in names and node not in same_anywhere]
    reads = [node for node in reads if isinstance(node.ctx, ast.Load)]
    return [taken[read] for read in reads] if all(read in taken for read in reads) else []


def _dot_of(move: ast.Call, line: bytes) -> int:
    """Where the method begins, behind any parentheses around its object."""
    assert isinstance(move.func, ast.Attribute)
    return line.index(b".", move.func.value.end_col_offset)


def _device_of(call: ast.Call) -> str | None:
    """What a plain `.to(device)` or `.cuda()` moves to; None of all other calls."""
    match call:
        case ast.Call(func=ast.Attribute(attr="to"), args=[device], keywords=[]):
            return ast.unparse(device)
        case ast.Call(func=ast.Attribute(attr="cuda"), args=[], keywords=[]):
            return "'cuda'"
    return None
