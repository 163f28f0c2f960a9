"""Bounds the gradients before the optimizer applies them: `clip_grad_norm_` above the line that calls `.step()`."""

import ast
import math
from collections.abc import Sequence

from efprof.model import CodeEdit, Fix

CLIPPING = frozenset({"clip_grad_norm_", "clip_grad_value_"})


def clip_gradients(
    file: str, lines: Sequence[str], tree: ast.Module | None, backward_line: int, usual_norm: float
) -> Fix:
    """Clip at the usual norm, to two digits; where the file clips already, lower."""
    max_norm = round(usual_norm, 1 - math.floor(math.log10(usual_norm)))
    if tree is None or clips_already(tree):
        return Fix(
            summary=f"Clip at max_norm={max_norm:g}, the usual norm before the explosion, or lower the learning rate.",
            applicability="manual",
        )
    edit = clip_before_step(file, lines, tree, backward_line, max_norm)
    return Fix(
        summary=f"Clip the gradients at {max_norm:g}, their usual norm before the explosion, ahead of the optimizer's "
        "step; under a gradient scaler call `scaler.unscale_(optimizer)` first.",
        applicability="review" if edit else "manual",
        changes=(edit,) if edit else (),
    )


def clips_already(tree: ast.Module) -> bool:
    """Whether the file calls one of PyTorch's clipping functions."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in CLIPPING)
        or (isinstance(node, ast.Name) and node.id in CLIPPING)
        for node in ast.walk(tree)
    )


def clip_before_step(
    file: str, lines: Sequence[str], tree: ast.Module, backward_line: int, max_norm: float
) -> CodeEdit | None:
    """Insert the call; None where the optimizer's step or whose parameters it applies to is not plain to see."""
    steps = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno > backward_line
        if isinstance(node.value.func, ast.Attribute) and node.value.func.attr == "step"
        if not ast.unparse(node.value.func.value).lower().endswith(("scheduler", "profiler"))
    ]
    owners = {
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters"
    }
    if not steps or len(owners) != 1:
        return None
    line = lines[min(steps) - 1]
    indentation = line[: len(line) - len(line.lstrip())]
    call = f"torch.nn.utils.clip_grad_norm_({owners.pop()}.parameters(), max_norm={max_norm:g})"
    return CodeEdit(file=file, line=min(steps), old=line, new=f"{indentation}{call}\n{line}")
