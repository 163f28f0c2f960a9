"""Which entry of nested dictionaries an expression means, beside the entry that a holder is."""

import ast
from collections.abc import Sequence

from efprof.artifacts.holders import Holder

Keys = tuple[str | None, ...]
"""From the variable inwards; None is a key that only the running program knows."""


def shown_name(holder: Holder) -> str:
    """As the program spells it: `stats['train']['losses']` where the variable is `stats`."""
    return holder.name + holder.path.removeprefix(f"{holder.owner}.{holder.name}") if _is_entry(holder) else holder.name


def keys_in(holder: Holder) -> Keys:
    """`train` and `losses` of `stats['train']['losses']`; none of a plain variable."""
    if not _is_entry(holder):
        return ()
    try:
        return keys_of(ast.parse("_" + holder.path.removeprefix(f"{holder.owner}.{holder.name}"), mode="eval").body)
    except SyntaxError:
        return ()


def keys_of(expression: ast.expr) -> Keys:
    """Those of `stats["train"][name]`, of `stats.setdefault("train", [])` too."""
    match expression:
        case ast.Subscript(value=inner, slice=key):
            return (*keys_of(inner), _text(key))
        case ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get"), args=[key, *_]):
            return (*keys_of(inner), _text(key))
    return ()


def may_meet(some: Sequence[str | None], others: Sequence[str | None]) -> bool:
    """Whether what they lead to may be the same, or within one another."""
    return all(one is None or other is None or one == other for one, other in zip(some, others, strict=False))


def _is_entry(holder: Holder) -> bool:
    return holder.path.startswith(f"{holder.owner}.{holder.name}[")


def _text(key: ast.expr) -> str | None:
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
