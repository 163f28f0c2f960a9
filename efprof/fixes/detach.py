"""Keeps a value without the graph that made it: `history.append(loss)` becomes `history.append(loss.detach())`."""

import ast
from collections.abc import Sequence

from efprof.fixes.kept_value import KeptValue
from efprof.fixes.source_edit import as_receiver, replace_expression, text_of
from efprof.model import CodeEdit

DETACHED, CLONED = ".detach()", ".detach().clone()"
"""The second where what is kept is a view of a larger storage, as `F.mse_loss` gives on a CPU: detaching keeps it."""


def detach_value(
    file: str, lines: Sequence[str], kept: KeptValue, entry: Sequence[str], how: str = DETACHED
) -> CodeEdit | None:
    """Detach what was counted to be a tensor; of a tuple, list, dict or record, its one part that is.

    `entry` tells the types of what is kept, as the count saw them; None where none of it is known to be a tensor.
    """
    value = tensor_in(kept, entry)
    return detach_tensor(file, lines, value, how) if value is not None else None


def detach_tensor(file: str, lines: Sequence[str], value: ast.expr, how: str = DETACHED) -> CodeEdit:
    """Detach what is known to be a tensor."""
    return replace_expression(file, lines, value, f"{as_receiver(lines, value)}{how}")


def detach_carried(file: str, lines: Sequence[str], carried: ast.expr, kind: str) -> CodeEdit:
    """Detach what one step hands to the next where it enters the call; `kind` is the carried value's type."""
    text = text_of(lines, carried)
    parts = f"{kind}(part.detach() for part in {text})"
    new_text = parts if kind in ("tuple", "list") else f"{as_receiver(lines, carried)}.detach()"
    return replace_expression(file, lines, carried, new_text)


def tensor_in(kept: KeptValue, entry: Sequence[str]) -> ast.expr | None:
    """The expression that gives the tensor of such an entry."""
    value: ast.expr | None = kept.value
    if kept.is_whole:  # `losses += [loss]`
        value = kept.value.elts[0] if isinstance(kept.value, ast.List) and len(kept.value.elts) == 1 else None
    if value is None or not entry or isinstance(value, ast.Starred):
        return None
    if entry[0] == "Tensor":
        return value
    parts, places = _parts_of(value), [place for place, kind in enumerate(entry[1:]) if kind == "Tensor"]
    is_alike = len(parts) == len(entry) - 1 and not any(isinstance(part, ast.Starred) for part in parts)
    return parts[places[0]] if is_alike and len(places) == 1 else None


def _parts_of(value: ast.expr) -> list[ast.expr]:
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return parts
        case ast.Call(args=parts, keywords=[]):  # a record that is a tuple
            return parts
    return []
