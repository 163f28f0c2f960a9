"""Keeps a value without the graph that made it: `history.append(loss)` becomes `history.append(loss.detach())`."""

import ast
from collections.abc import Sequence

from efprof.fixes.source_edit import as_receiver, replace_expression, text_of
from efprof.fixes.tensor_values import is_tensor, is_tensor_with_graph
from efprof.model import CodeEdit


def detach_value(
    file: str, lines: Sequence[str], tree: ast.Module, value: ast.expr, others: Sequence[ast.Module] = ()
) -> CodeEdit | None:
    """Detach one tensor, or the tensor among the parts of a tuple, list or record; None where none is plainly one.

    `others` are the files that may call the function around it.
    """
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return _detach_parts(file, lines, tree, parts)
        case ast.Dict(values=parts):
            return _detach_parts(file, lines, tree, parts)
        case ast.Call(func=ast.Name(id=made) | ast.Attribute(attr=made), args=parts, keywords=named) if _is_record(
            made
        ):
            return _detach_parts(file, lines, tree, [*parts, *(keyword.value for keyword in named)])
    return detach_tensor(file, lines, value) if is_tensor_with_graph(value, tree, others) else None


def detach_tensor(file: str, lines: Sequence[str], value: ast.expr) -> CodeEdit:
    """Detach what is known to be a tensor."""
    return replace_expression(file, lines, value, f"{as_receiver(lines, value)}.detach()")


def detach_carried(file: str, lines: Sequence[str], carried: ast.expr, kind: str) -> CodeEdit:
    """Detach what one step hands to the next where it enters the call; `kind` is the carried value's type."""
    text = text_of(lines, carried)
    parts = f"{kind}(part.detach() for part in {text})"
    new_text = parts if kind in ("tuple", "list") else f"{as_receiver(lines, carried)}.detach()"
    return replace_expression(file, lines, carried, new_text)


def _is_record(called: str) -> bool:
    """Whether a call makes a record of its arguments, by its name: a class, or one of Python's containers."""
    return called[:1].isupper() or called in (
        "dict",
        "list",
        "tuple",
        "set",
        "asdict",
        "copy",
        "deepcopy",
        "replace",
        "partial",
    )


def _detach_parts(file: str, lines: Sequence[str], tree: ast.Module, parts: Sequence[ast.expr]) -> CodeEdit | None:
    """Only one part can be told to be a tensor with its graph: then that one."""
    is_one = len(parts) == 1 and not isinstance(parts[0], ast.Starred)
    known = [part for part in parts if is_one or is_tensor(part, tree)]
    return detach_value(file, lines, tree, known[0]) if len(known) == 1 else None
