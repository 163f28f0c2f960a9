"""The edits that keep a data set on the host: `data = data.to(device)` becomes `data = data.pin_memory()`."""

import ast
from collections.abc import Sequence

from efprof.model import CodeEdit


def keep_on_host(
    file: str, lines: Sequence[str], moves: Sequence[ast.Call], slices: Sequence[ast.Subscript]
) -> tuple[CodeEdit, ...]:
    """The edits of the moves, and of each slice, which lies in the same function; none unless all can be made.

    Each slice is moved where the data was, so all moves must name the same device, and nothing else. Whoever reads the
    data otherwise needs it where it was, and what takes samples elsewhere hands them on in ways that no edit of one
    expression can follow: then there are no slices, and no edits.
    """
    devices = {_device_of(move) for move in moves}
    is_one_line = all(one.lineno == one.end_lineno for one in (*moves, *slices))
    if len(devices) != 1 or None in devices or not slices or not is_one_line:
        return ()
    (device,) = devices
    edited: dict[int, bytes] = {}
    for one in sorted((*moves, *slices), key=lambda one: (one.lineno, one.col_offset), reverse=True):
        line = edited.get(one.lineno, lines[one.lineno - 1].encode())
        kept = one if isinstance(one, ast.Subscript) else _moved(one)  # what stays as it is written
        added = f".to({device}, non_blocking=True)" if isinstance(one, ast.Subscript) else ".pin_memory()"
        # Behind the dot of the old method; syntax trees count bytes of UTF-8, and leave parentheses out.
        head = line[: kept.end_col_offset] + _closing(line, kept, one)
        edited[one.lineno] = head + added.encode() + line[one.end_col_offset :]
    return tuple(
        CodeEdit(file=file, line=number, old=lines[number - 1], new=text.decode())
        for number, text in sorted(edited.items())
    )


def _moved(move: ast.expr) -> ast.expr:
    assert isinstance(move, ast.Call)
    assert isinstance(move.func, ast.Attribute)
    return move.func.value


def _closing(line: bytes, kept: ast.expr, whole: ast.expr) -> bytes:
    """The parentheses around `kept` that end before the dot of what follows it."""
    between = line[kept.end_col_offset : whole.end_col_offset]
    return between[: between.index(b".")].rstrip() if b"." in between else b""


def _device_of(move: ast.Call) -> str | None:
    """What a plain `.to(device)` or `.cuda()` moves to; None for all other calls."""
    match move:
        case ast.Call(func=ast.Attribute(attr="to"), args=[device], keywords=[]):
            return ast.unparse(device)
        case ast.Call(func=ast.Attribute(attr="cuda"), args=[], keywords=[]):
            return "'cuda'"
    return None
