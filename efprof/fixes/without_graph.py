"""A loop under `with torch.no_grad():`."""

import ast

from efprof.model import CodeEdit, Fix, SourceFile, SourceLine, called_name

UNDER = "with torch.no_grad():"
TRAINS = frozenset({"backward", "step", "grad"})
"""Calls that a loop which only evaluates has none of."""


def without_graph(file: SourceFile, loop: SourceLine) -> Fix:
    """The edit of the statement that begins at this line; by hand where it trains as well, or holds long texts."""
    found = [one for one in ast.walk(file.tree) if isinstance(one, ast.stmt) and one.lineno == loop.line]
    inside = list(ast.walk(found[0])) if found else []
    if any(called_name(one) in TRAINS for one in inside):
        return Fix.by_hand(f"Turn gradients off where {loop} evaluates: `with torch.set_grad_enabled(is_training):`.")
    summary = f"Put the loop at {loop} under `{UNDER}`."
    texts = (one for one in inside if isinstance(one, ast.Constant | ast.JoinedStr))
    if not found or "import torch" not in file.lines or any(one.lineno != one.end_lineno for one in texts):
        return Fix.by_hand(summary)
    lines = file.lines[loop.line - 1 : found[0].end_lineno]
    indent = lines[0][: found[0].col_offset]
    new = [indent + UNDER, *(f"    {line}".rstrip() for line in lines)]
    edit = CodeEdit(file=file.name, line=loop.line, old="\n".join(lines), new="\n".join(new))
    return Fix.by(edit, "safe", summary)
