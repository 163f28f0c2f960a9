"""A loop under `with torch.no_grad():`."""

import ast

from efprof.model import CodeEdit, Fix, SourceFile, SourceLine, called_name

UNDER = "with torch.no_grad():"
TRAINS = frozenset({"backward", "step", "grad"})
"""Calls that a loop which only evaluates has none of."""


def without_graph(file: SourceFile, blame: SourceLine) -> Fix:
    """The edit of the statement that begins at this line; by hand where it trains as well, or holds long texts."""
    inside = [node for node in ast.walk(file.tree) if isinstance(node, ast.stmt) and _is_at(node, blame.line)]
    if not inside or "torch" not in _imported(file.tree):
        return Fix.by_hand(f"Run what {blame} repeats under `{UNDER}`.")
    statement = inside[-1]
    nodes = list(ast.walk(statement))
    if any(called_name(node) in TRAINS for node in nodes):
        return Fix.by_hand(
            f"Run the forward pass under `with torch.set_grad_enabled(...)`, false where {blame} evaluates."
        )
    if any(isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno != node.end_lineno for node in nodes):
        return Fix.by_hand(f"Put the loop at {blame} under `{UNDER}`.")
    lines = file.lines[statement.lineno - 1 : statement.end_lineno]
    indent = lines[0][: statement.col_offset]
    new = [f"{indent}{UNDER}", *(f"    {line}" if line.strip() else line for line in lines)]
    edit = CodeEdit(file=file.name, line=statement.lineno, old="\n".join(lines), new="\n".join(new))
    return Fix.by(edit, "safe", f"Put the loop at {blame} under `{UNDER}`.")


def _is_at(statement: ast.stmt, line: int) -> bool:
    is_block = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return statement.lineno <= line <= (statement.end_lineno or line) and not is_block


def _imported(tree: ast.Module) -> set[str]:
    every = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {one.asname or one.name for node in every for one in node.names}
