"""What the statement on a line that was seen to feed a holder puts into it: `loss` of `history.append(loss)`."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

VALUE_PLACE: Final = {
    "append": 0, "appendleft": 0, "add": 0, "extend": 0, "extendleft": 0, "update": 0, "insert": 1, "setdefault": 1,
    "put": 0, "put_nowait": 0,
}  # fmt: skip
"""The methods that make a container longer, and which argument it keeps."""
JOINING: Final = frozenset({"cat", "stack", "concat", "concatenate", "hstack", "vstack", "maximum", "minimum", "add"})
"""Calls that put the old value and a new one together; any other call carries the old value through a model."""
EMPTY: Final = frozenset({"[]", "{}", "set()", "list()", "dict()", "deque()"})


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptValue:
    """The expression; `carried` is the argument through which the old value enters a call that makes the new one.

    `is_whole` where it is no entry of what keeps it, but has such entries, or is all that keeps them.
    """

    value: ast.expr
    carried: ast.expr | None = None
    is_whole: bool = False


def kept_at(tree: ast.Module, line: int, name: str) -> KeptValue | None:
    """By the one statement there that can do it, that of the holder's `name` first; None where none or several can.

    The holder may be known there by another name, as `store` of `store = self.outputs[key]`.
    """
    last = name.partition("[")[0].rpartition(".")[2]
    found = [
        pair
        for statement in ast.walk(tree)
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body")
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno)
        for node in ast.walk(statement)
        for pair in _kept_by(node, last)
    ]
    of_name = [kept for receiver, kept in found if receiver == last]
    candidates = of_name or [kept for _, kept in found]
    return candidates[0] if len(candidates) == 1 else None


def tensor_in(kept: KeptValue, entry: Sequence[str]) -> ast.expr | None:
    """The one expression in it that gives a tensor, by the types of such entries, as the count saw them."""
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


def _kept_by(node: ast.AST, name: str) -> Iterator[tuple[str, KeptValue]]:
    """What a node keeps, and the last name of what it keeps it in."""
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=args) if method in VALUE_PLACE:
            kept = args[VALUE_PLACE[method] : VALUE_PLACE[method] + 1]
            if kept and ast.unparse(kept[0]) not in EMPTY:  # of `losses.setdefault(key, []).append(loss)`
                is_whole = method in ("extend", "extendleft", "update")
                yield _last_name(receiver), KeptValue(value=kept[0], is_whole=is_whole)
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            yield _last_name(target), KeptValue(value=value, is_whole=True)
        case ast.Assign(targets=[ast.Subscript(value=inner)], value=value):
            yield _last_name(inner), KeptValue(value=value)
        case ast.Assign(targets=[ast.Tuple(elts=parts)], value=value) if name in map(_last_name, parts):
            yield name, _renewal(value, name)
        case ast.Assign(targets=[target], value=value) if not isinstance(target, ast.Tuple):
            yield _last_name(target), _renewal(value, _last_name(target))


def _renewal(value: ast.expr, name: str) -> KeptValue:
    """Of `name = <something with name>`: a sum, a joining of tensors, or a call that carries it."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right) if _last_name(left) == name:
            return KeptValue(value=right, is_whole=True)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if _last_name(right) == name:
            return KeptValue(value=left, is_whole=True)
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args) if called not in JOINING:
            carried = next((argument for argument in args if _last_name(argument) == name), None)
            return KeptValue(value=value, carried=carried, is_whole=True)
    return KeptValue(value=value, is_whole=True)


def _last_name(expression: ast.expr) -> str:
    """`history` of `history`, `self.history[key]`, `history.setdefault(key, [])`; empty of anything else."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner, attr="setdefault" | "get")):
            return _last_name(inner)
    return ""


def _parts_of(value: ast.expr) -> list[ast.expr]:
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return parts
        case ast.Call(args=parts, keywords=[]):  # a record that is a tuple
            return parts
    return []
