"""Clears the gradients once for each step: `optimizer.zero_grad(set_to_none=True)` below `optimizer.step()`."""

import ast
from collections.abc import Callable, Mapping, Sequence

from efprof.model import CodeEdit, Fix, SourceLine

CLEARING = "zero_grad"
BY_HAND = (
    "Call `zero_grad(set_to_none=True)` of the optimizer once between its step and the backward pass that makes its "
    "next gradients."
)
RETUNE = "Then choose the learning rate anew: the one in use was tried with sums of gradients."


def clear_gradients(
    steps: Sequence[SourceLine | None],
    lines: Mapping[str, Sequence[str]],
    tree: Callable[[str], ast.Module | None],
) -> Fix:
    """Clear each optimizer's gradients below the line that steps it; by hand where that is not plain to see.

    A step is None where it is not known, or where a pass before it makes gradients that another step may need.
    """
    edits = [None if step is None else _edit(step, lines, tree(step.file)) for step in steps]
    found = [edit for edit in edits if edit is not None]
    if not found or len(found) < len(edits):
        return Fix(summary=f"{BY_HAND} {RETUNE}", applicability="manual")
    calls = " and ".join(dict.fromkeys(f"`{edit.new.splitlines()[-1].strip()}`" for edit in found))
    return Fix(
        summary=f"Clear the gradients after the step has used them: {calls}. {RETUNE}",
        applicability="review",
        changes=tuple(dict.fromkeys(found)),
    )


def clearing_lines(file: str, tree: ast.Module | None) -> tuple[str, ...]:
    """`file:line` of every `zero_grad` that the file calls."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    lines = {call.lineno for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == CLEARING}
    return tuple(f"{file}:{line}" for line in sorted(lines))


def _edit(step: SourceLine, files: Mapping[str, Sequence[str]], tree: ast.Module | None) -> CodeEdit | None:
    """None where the step is not a statement alone on its lines that names one optimizer."""
    for statement in ast.walk(tree) if tree else ():
        if not isinstance(statement, ast.Expr | ast.Assign) or statement.lineno != step.line:
            continue
        optimizer, last = _stepped_by(statement.value), statement.end_lineno or statement.lineno
        lines = files[step.file]
        before = lines[statement.lineno - 1].encode()[: statement.col_offset].decode()
        after = lines[last - 1].encode()[statement.end_col_offset :].decode().strip()
        if optimizer is not None and not before.strip() and (not after or after.startswith("#")):
            old = lines[last - 1]
            return CodeEdit(
                file=step.file, line=last, old=old, new=f"{old}\n{before}{optimizer}.{CLEARING}(set_to_none=True)"
            )
    return None


def _stepped_by(call: ast.expr) -> str | None:
    """The optimizer of `optimizer.step()` or `scaler.step(optimizer)`; None of a step with a closure."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return None
    optimizer, arguments = call.func.value, [*call.args, *(keyword.value for keyword in call.keywords)]
    if "scaler" in ast.unparse(optimizer).lower() and arguments:
        optimizer, arguments = arguments[0], []
    is_named = all(isinstance(node, ast.Name | ast.Attribute | ast.expr_context) for node in ast.walk(optimizer))
    return ast.unparse(optimizer) if is_named and not arguments else None
