"""Hands a tensor to backward as autograd knows it: `ctx.y = y` becomes `ctx.save_for_backward(y)`."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from efprof.fixes.source_edit import replace_expression, text_of
from efprof.model import CodeEdit, Fix

SAVING = "save_for_backward"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Storing:
    """`context.name = value` in a class that is an autograd function."""

    function: ast.ClassDef
    statement: ast.Assign
    context: str
    name: str


def save_for_backward(file: str, lines: Sequence[str], tree: ast.Module, value: ast.expr | None) -> Fix | None:
    """The fix of the statement that stores `value` on an autograd function's context; None for any other statement.

    An edit where the class saves nothing else, and only its backward reads the attribute, once in a line.
    """
    storing = next((storing for storing in _storings(tree) if storing.statement.value is value), None)
    if storing is None or value is None:
        return None
    context, kept = storing.context, text_of(lines, value)
    edits = _edits(file, lines, storing, f"{context}.{SAVING}({kept})")
    how = "and take it from" if edits else "together with what is saved so already, and take it from"
    return Fix(
        summary=f"Save `{kept}` by `{context}.{SAVING}({kept})`, {how} `{context}.saved_tensors` in backward: autograd "
        f"keeps a saved output apart from its graph, while an attribute of `{context}` keeps both in a circle.",
        applicability="review" if edits else "manual",
        changes=edits,
    )


def _storings(tree: ast.Module) -> Iterator[_Storing]:
    for function in ast.walk(tree):
        if isinstance(function, ast.ClassDef) and any(
            ast.unparse(base).endswith("Function") for base in function.bases
        ):
            for node in ast.walk(function):
                match node:
                    case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=context), attr=name)]) if (
                        context != "self"
                    ):
                        yield _Storing(function=function, statement=node, context=context, name=name)


def _edits(file: str, lines: Sequence[str], storing: _Storing, saved: str) -> tuple[CodeEdit, ...]:
    nodes = list(ast.walk(storing.function))
    others = [other for other in nodes if isinstance(other, ast.Attribute) and other.attr in (storing.name, SAVING)]
    reads = [other for other in others if isinstance(other.ctx, ast.Load) and other.attr == storing.name]
    backward = {id(node) for method in nodes if _is_backward(method) for node in ast.walk(method)}
    is_all = len(others) == len(reads) + 1  # the rest is the one that is stored to
    changed: list[ast.stmt | ast.expr] = [storing.statement, *reads]
    places = {node.lineno for node in changed if node.lineno == node.end_lineno}
    if not reads or not is_all or len(places) < len(changed) or not all(id(read) in backward for read in reads):
        return ()
    return (
        replace_expression(file, lines, storing.statement, saved),
        *(
            replace_expression(file, lines, read, f"{text_of(lines, read.value)}.saved_tensors[0]")
            for read in sorted(reads, key=lambda read: read.lineno)
        ),
    )


def _is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "backward"
