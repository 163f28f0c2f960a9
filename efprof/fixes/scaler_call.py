"""Sets arguments of the call that makes a gradient scaler, in the user's source or in words."""

import ast
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from efprof.fixes.source_edit import set_arguments, text_of, written_arguments
from efprof.model import Change, ConfigurationValue

NAME_ENDING = "GradScaler"
"""torch's own, and classes derived from it."""


def set_scaler_arguments(
    file: str,
    lines: Sequence[str],
    tree: ast.Module | None,
    line: int,
    *,
    old: Mapping[str, object],
    new: Mapping[str, object],
) -> tuple[Change, ...]:
    """The edit of the one call on that line that makes a scaler, where its text allows one; else the settings.

    Their file is left out where another call makes the scaler, as a framework's does.
    """
    calls = [node for node in (ast.walk(tree) if tree else ()) if _makes_scaler(node) and node.lineno == line]
    is_plain = len(calls) == 1 and not any(isinstance(argument, ast.Starred) for argument in calls[0].args)
    edit = set_arguments(file, lines, calls[0], new, num_before=_num_before_scale(calls[0])) if is_plain else None
    written = written_arguments(calls[0]) if is_plain else {}
    if edit is not None:
        return (edit,)
    names = {name: text_of(lines, written[name]) if name in written else name for name in new}
    where = file if is_plain else None
    return tuple(
        ConfigurationValue(name=names[name], old=str(old[name]), new=str(new[name]), file=where) for name in new
    )


def _makes_scaler(node: ast.AST) -> TypeGuard[ast.Call]:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.endswith(NAME_ENDING)
    return False


def _num_before_scale(call: ast.Call) -> int:
    """`torch.amp.GradScaler(device, init_scale, ...)`; that of `torch.cuda.amp` knows its device."""
    is_of_any_device = not any(part in ast.unparse(call.func) for part in ("cuda", "cpu"))
    is_named = bool(call.args) and not (
        isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, int | float)
    )
    return int(is_of_any_device and is_named)
