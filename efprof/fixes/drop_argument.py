"""Lets backward release its graph: `loss.backward(retain_graph=True)` becomes `loss.backward()`."""

import ast
from collections.abc import Sequence
from typing import TypeGuard

from efprof.fixes.source_edit import replace_expression, text_of
from efprof.model import CodeEdit, Fix, SourceLine

BACKWARD_NAMES = frozenset({"backward", "manual_backward"})
"""`Tensor.backward`, `torch.autograd.backward`, and what Accelerate and Lightning call theirs; all hand these on."""
KEEPING = frozenset({"retain_graph", "create_graph"})


def drop_graph(
    blame: SourceLine, lines: Sequence[str], tree: ast.Module | None, *, told: str, is_graph_of_gradients: bool
) -> Fix:
    """Take out the arguments by which the call on the blamed line was `told` to keep its graph.

    `lines` and `tree` are the whole file's. An edit where the line has one call of backward, which is given all such
    arguments as a plain `True`.
    """
    calls = [node for node in (ast.walk(tree) if tree else ()) if _is_backward(node, blame.line)]
    given = [one for one in calls[0].keywords if one.arg in KEEPING] if len(calls) == 1 else []
    is_plain = bool(given) and all(isinstance(one.value, ast.Constant) and one.value.value is True for one in given)
    edit = _without(blame.file, lines, calls[0], given) if is_plain else None
    dropped = " and ".join(f"`{one.arg}=True`" for one in given) if is_plain else f"`{told}=True`"
    return Fix(
        summary=f"Drop {dropped}: backward then releases the graph as it goes.",
        applicability="manual" if edit is None else "review" if is_graph_of_gradients else "safe",
        changes=(edit,) if edit else (),
    )


def _is_backward(node: ast.AST, line: int) -> TypeGuard[ast.Call]:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in BACKWARD_NAMES and node.lineno <= line <= (node.end_lineno or node.lineno)
    return False


def _without(file: str, lines: Sequence[str], call: ast.Call, dropped: Sequence[ast.keyword]) -> CodeEdit | None:
    """The call without these arguments, on one line; None where a comment in it may be about what is dropped."""
    if "#" in text_of(lines, call):
        return None
    given = [text_of(lines, argument) for argument in call.args]
    given += [
        f"{one.arg}={text_of(lines, one.value)}" if one.arg else f"**{text_of(lines, one.value)}"
        for one in call.keywords
        if one not in dropped
    ]
    return replace_expression(file, lines, call, f"{text_of(lines, call.func)}({', '.join(given)})")
