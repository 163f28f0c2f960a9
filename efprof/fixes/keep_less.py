"""What a statement, or a library, keeps, and how to keep less: no graph, a copy, only so many, weakly."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from efprof.fixes.source_edit import as_receiver, replace_expression, text_of
from efprof.model import Fix, SourceFile

DETACHED, CLONED = ".detach()", ".detach().clone()"
"""The second where what is kept is a view of a larger storage, as `F.mse_loss` gives on a CPU: detaching keeps it."""
WAYS_TO_BOUND = (
    "(a list: `collections.deque(maxlen=...)`; a dictionary: drop the oldest keys; a queue: `maxsize=...`), write it "
    "to a file every so often, or keep one number of what is put into it"
)
"""To bound a container of any type."""

VALUE_PLACE: Final = {
    "append": 0, "appendleft": 0, "add": 0, "extend": 0, "extendleft": 0, "update": 0, "insert": 1, "setdefault": 1,
    "put": 0, "put_nowait": 0,
}  # fmt: skip
"""The methods that make a container longer, and which argument it keeps."""
EMPTY: Final = frozenset({"[]", "{}", "set()", "list()", "dict()", "deque()"})


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptValue:
    """The expression; `is_whole` where it is no entry of what keeps it, but has such entries, or is all of it."""

    value: ast.expr
    is_whole: bool = False


def kept_at(file: SourceFile, line: int, name: str) -> KeptValue | None:
    """By the one statement there that can do it, that of the holder's `name` first; None where none or several can.

    The holder may be known there by another name, as `store` of `store = self.outputs[key]`.
    """
    last = name.partition("[")[0].rpartition(".")[2]
    found = [
        pair
        for statement in ast.walk(file.tree)
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body")
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno)
        for node in ast.walk(statement)
        for pair in _kept_by(node)
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


def keep_without_graph(
    file: SourceFile, kept: KeptValue | None, *, name: str, is_tensor: bool, entry: Sequence[str], how: str
) -> Fix:
    """Detach what a statement puts into the holder `name`, a tensor or of such entries; a person reviews it.

    What was not counted to be a tensor is left to a person, and so is a statement that is not known.
    """
    value: ast.expr | None = None
    if kept is not None:  # what is added to a tensor is one, too
        value = kept.value if is_tensor else tensor_in(kept, entry)
    if value is None:
        return Fix.by_hand(
            f"Detach each tensor that is put into `{name}`: `{how}`, or `.item()` for a number; a state that is handed "
            "on, once per optimizer step."
        )
    return Fix(
        summary=f"Keep the value without its graph; check that nothing calls backward on what `{name}` keeps.",
        applicability="review",
        changes=(replace_expression(file, value, f"{as_receiver(file, value)}{how}"),),
    )


def keep_copies(file: SourceFile, value: ast.expr, name: str) -> Fix:
    """Copy what is kept of a storage that was counted to be larger: a view of a tensor shares all of its memory."""
    edit = replace_expression(file, value, f"{as_receiver(file, value)}.clone()")
    return Fix(
        summary=f"Keep a copy: what `{name}` keeps is a small part of a tensor whose whole memory stays with it (or "
        f"`.item()`, where it is one number). If the copies are still too many, bound `{name}`.",
        applicability="safe",
        changes=(edit,),
    )


def keep_fewer(name: str, most: int, unit: str, *, elsewhere: str, others: Sequence[str] = ()) -> Fix:
    """`most` of its `unit` (entries, tensors, steps) take 1 % of the memory; the line feeds the `others`, too."""
    take = f"What {most:,} steps add takes" if unit == "steps" else f"{most:,} {unit} take"
    likewise = f" Likewise {', '.join(f'`{other}`' for other in others)}." if others else ""
    return Fix.by_hand(f"Bound `{name}` {WAYS_TO_BOUND}, or {elsewhere}. {take} 1 % of the memory there is.{likewise}")


def end_feeding(path: str) -> Fix:
    """Where a library that the line calls keeps what it is given."""
    return Fix.by_hand(
        f"Each such call adds to `{path}`. Make it once, before the loop, or undo it at the end of the step: the "
        "`remove()` of a hook's handle, `plt.close(figure)`. Give a cache a limit (`@lru_cache(maxsize=N)`), write "
        "into a buffer (`self.name.copy_(value)`), and log numbers (`.item()`)."
    )


def without_traceback(file: SourceFile, name: str, error: ast.expr) -> Fix:
    """The edit of a statement that keeps a caught error in `name`."""
    edit = replace_expression(file, error, f"{text_of(file, error)}.with_traceback(None)")
    return Fix(
        summary=f"Keep the error in `{name}` without its traceback, which keeps the variables of every function that "
        "it came through; who prints it later sees its message alone.",
        applicability="review",
        changes=(edit,),
    )


def caught_error(value: ast.expr | None, tree: ast.Module) -> ast.Name | None:
    """The name of an error in the handler that caught it: `error`, or that of `(step, error)`."""
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    errors = [
        part
        for part in parts
        if isinstance(part, ast.Name)
        if any(one.name == part.id and one.lineno <= part.lineno <= (one.end_lineno or 0) for one in handlers)
    ]
    return errors[0] if len(errors) == 1 else None


def _kept_by(node: ast.AST) -> Iterator[tuple[str, KeptValue]]:
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
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
            old = _last_name(target)
            match value:
                case ast.BinOp(left=left, op=ast.Add(), right=right) if old in (_last_name(left), _last_name(right)):
                    yield old, KeptValue(value=right if _last_name(left) == old else left, is_whole=True)
                case ast.Call(args=args) if old in map(_last_name, args):  # a state that a call carries on
                    pass
                case _:
                    yield old, KeptValue(value=value, is_whole=True)


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
