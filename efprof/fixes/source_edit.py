"""Replaced expressions, set arguments and deleted statements of the user's source as a CodeEdit of whole lines."""

import ast
from collections.abc import Iterable, Mapping, Sequence

from efprof.model import CodeEdit, SourceFile, called_name

ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Tuple, ast.Dict, ast.JoinedStr)
"""Expressions that a method call may follow without parentheses around them."""


def calls_on(tree: ast.Module, line: int) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line]


def replace_expression(file: SourceFile, expression: ast.expr, new_text: str) -> CodeEdit:
    """The edit that puts `new_text` where `expression` stands."""
    return replace_parts(file, expression, [(expression, new_text)])


def replace_parts(file: SourceFile, whole: ast.expr | ast.stmt, parts: Iterable[tuple[ast.expr, str]]) -> CodeEdit:
    """The edit of all lines of `whole` that puts a text where each of these parts of it stands."""
    first, last = whole.lineno, whole.end_lineno or whole.lineno
    lines = list(file.lines[first - 1 : last])
    for part, text in sorted(parts, key=lambda item: end_of(item[0]), reverse=True):
        start, end = part.lineno - first, (part.end_lineno or part.lineno) - first
        before, _ = cut(lines[start], part.col_offset)
        _, after = cut(lines[end], part.end_col_offset or 0)
        lines[start : end + 1] = [before + text + after]
    old = "\n".join(file.lines[first - 1 : last])
    return CodeEdit(file=file.name, line=first, old=old, new="\n".join(lines))


def end_of(value: ast.expr) -> tuple[int, int]:
    """Line and offset of the first byte behind it."""
    return value.end_lineno or value.lineno, value.end_col_offset or 0


def delete_statement(file: SourceFile, line: int, name: str) -> CodeEdit | None:
    """The edit that takes out the call of this name alone on this line; None where it has another call, or more."""
    for parent in ast.walk(file.tree):
        for part in ("body", "orelse", "finalbody"):
            block = getattr(parent, part, None)
            block = block if isinstance(block, list) else []
            match [one for one in block if one.lineno == line]:
                case [ast.Expr(value=ast.Call() as call, end_lineno=end, col_offset=indent)] if (
                    end == line and called_name(call) == name
                ):
                    old = file.lines[line - 1]
                    new = "" if len(block) > 1 else f"{old[:indent]}pass"
                    return CodeEdit(file=file.name, line=line, old=old, new=new)
    return None


def set_arguments(file: SourceFile, call: ast.Call, new: Mapping[str, object], *, num_before: int) -> CodeEdit | None:
    """One edit of the whole call that gives these arguments by name.

    None where an argument's value is computed, or arguments are passed on unseen; `num_before` arguments come before
    the first of them in the order of the signature.
    """
    written = written_arguments(call)
    absent = [name for name in new if name not in written]
    is_opaque = any(keyword.arg is None for keyword in call.keywords) or len(call.args) > num_before
    if not all(isinstance(written.get(name), ast.Constant | None) for name in new) or (absent and is_opaque):
        return None
    replaced = {written[name]: str(value) for name, value in new.items() if name in written}
    last = max((*call.args, *(keyword.value for keyword in call.keywords)), key=end_of, default=None)
    if last is None:
        given = ", ".join(f"{name}={value}" for name, value in new.items())
        return replace_expression(file, call, f"{text_of(file, call.func)}({given})")
    added = "".join(f", {name}={new[name]}" for name in absent)
    replaced[last] = replaced.get(last, text_of(file, last)) + added
    return replace_parts(file, call, replaced.items())


def written_arguments(call: ast.Call | None) -> dict[str, ast.expr]:
    """Those that the call gives by name."""
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call else {}


def text_of(file: SourceFile, expression: ast.expr | ast.keyword) -> str:
    """The expression, or the named argument, as the user wrote it, its line breaks kept."""
    return ast.get_source_segment("\n".join(file.lines), expression) or ""


def arguments_of(file: SourceFile, call: ast.Call, dropped: Sequence[ast.keyword] = ()) -> list[str]:
    """The call's arguments as the user wrote them."""
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    return [text_of(file, argument) for argument in arguments if argument not in dropped]


def as_receiver(file: SourceFile, expression: ast.expr) -> str:
    """The expression's text, in parentheses where `.method()` would bind to its last part only."""
    text = text_of(file, expression)
    return text if isinstance(expression, ATOMS) else f"({text})"


def cut(line: str, offset: int) -> tuple[str, str]:
    """The line before and from an offset; syntax trees count bytes of UTF-8."""
    content = line.encode()
    return content[:offset].decode(), content[offset:].decode()
