"""Takes named arguments out of a call: `loss.backward(retain_graph=True)` becomes `loss.backward()`."""

import ast
import io
import tokenize
from collections.abc import Sequence

from efprof.model import CodeEdit

LAYOUT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})
Position = tuple[int, int]
"""Line, from 1, and column in characters."""


def drop_arguments(file: str, lines: Sequence[str], call: ast.Call, names: Sequence[str]) -> CodeEdit | None:
    """The edit of the whole call without these keywords; `lines` is the whole file.

    None where a comment stands beside one, which may be about it or about its neighbour, or what is left is no Python.
    """
    edited: list[str] | None = list(lines)
    for name in names:
        edited = _without(edited, call, name) if edited is not None else None
    if edited is None:
        return None
    first, last = call.lineno, call.end_lineno or call.lineno
    num_lines = last - first + 1 + len(edited) - len(lines)
    new = edited[first - 1 : first - 1 + num_lines]
    return CodeEdit(file=file, line=first, old="\n".join(lines[first - 1 : last]), new="\n".join(new))


def _without(lines: Sequence[str], call: ast.Call, name: str) -> list[str] | None:
    """The lines less one argument of the call that begins where `call` does."""
    keyword = next((one for one in _keywords_at(lines, call) if one.arg == name), None)
    if keyword is None:
        return None
    found = _stretch_of(lines, keyword)
    if found is None:
        return None
    (first, start), (last, end) = found
    joined = lines[first - 1][:start] + lines[last - 1][end:]
    edited = [*lines[: first - 1], joined, *lines[last:]]
    return edited if _parsed(edited) is not None else None


def _keywords_at(lines: Sequence[str], call: ast.Call) -> list[ast.keyword]:
    """The arguments of the outermost call that begins there: what is dropped from its end does not move its start."""
    tree = _parsed(lines)
    calls = [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Call)
        if (node.lineno, node.col_offset) == (call.lineno, call.col_offset)
        if ast.unparse(node.func) == ast.unparse(call.func)
    ]
    return calls[0].keywords if calls else []


def _stretch_of(lines: Sequence[str], keyword: ast.keyword) -> tuple[Position, Position] | None:
    """From where to where to cut: the argument and the comma before it, or, where it is the first, the one behind."""
    start = _position(lines, keyword.lineno, keyword.col_offset)
    end = _position(lines, keyword.end_lineno or keyword.lineno, keyword.end_col_offset or 0)
    content = io.StringIO("\n".join(lines) + "\n")
    tokens = [token for token in tokenize.generate_tokens(content.readline) if token.type not in LAYOUT]
    before = [token for token in tokens if token.end <= start][-1]
    after = [token for token in tokens if token.start >= end]
    after = after[: 2 if after[0].string == "," else 1]
    if any(token.type == tokenize.COMMENT for token in (before, *after)):
        return None
    if before.string == ",":
        return before.start, end
    return before.end, after[1].start if after[0].string == "," else after[0].start


def _position(lines: Sequence[str], line: int, offset: int) -> Position:
    """Syntax trees count bytes of UTF-8, tokens characters."""
    return line, len(lines[line - 1].encode()[:offset].decode())


def _parsed(lines: Sequence[str]) -> ast.Module | None:
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return None
