"""Deletes a statement that does nothing for the program but cost time."""

import ast
from collections.abc import Sequence

from efprof.model import CodeEdit


def delete_statement(file: str, lines: Sequence[str], tree: ast.Module | None, line: int) -> CodeEdit | None:
    """The edit that takes out the call alone on this line; None where there is more on it, or nothing beside it."""
    if tree is None:
        return None
    for parent in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if not isinstance(block, list):
                continue
            found = [one for one in block if isinstance(one, ast.Expr) and one.lineno == line == one.end_lineno]
            is_alone_on_line = sum(getattr(one, "lineno", 0) == line for one in block) == 1
            if found and is_alone_on_line and isinstance(found[0].value, ast.Call):
                old = lines[line - 1]
                indent = old[: len(old) - len(old.lstrip())]
                return CodeEdit(file=file, line=line, old=old, new="" if len(block) > 1 else f"{indent}pass")
    return None
