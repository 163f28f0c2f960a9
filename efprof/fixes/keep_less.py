"""The change to a statement that keeps tensors alive: without their graph, or no more than so many of them."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from efprof.fixes.detach import detach_carried, detach_tensor, detach_value
from efprof.fixes.source_edit import as_receiver, replace_expression
from efprof.fixes.tensor_values import is_tensor
from efprof.model import CodeEdit, Fix, SourceLine
from efprof.units import format_bytes

LEAST_LEFT_SHARE = 0.1
"""Of the growth: what detaching leaves of it is told from there on; less is lost among what is rounded."""
MOST_BOUNDS = 3
"""In one sentence."""
HOW = {
    **dict.fromkeys(("list", "set"), "make it `collections.deque(maxlen={most})`"),
    "deque": "give it `maxlen={most}`",
    **dict.fromkeys(("dict", "defaultdict", "OrderedDict"), "drop the oldest entries beyond {most:,}"),
    **dict.fromkeys(("Queue", "LifoQueue", "PriorityQueue"), "give it `maxsize={most}`, so that `put` waits"),
}
"""To bound a container, by its type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepingStatement:
    """What `value` a statement of `file` keeps in holders of these `names`, the first of type `kind`.

    `carried` is the argument through which the holder's old value enters the call that makes its new one;
    `readers` are the lines that may need the graphs of what is kept. Of the `bytes_per_step` that it keeps,
    `tensor_bytes_per_step` are the tensors themselves, without their graphs.
    """

    file: str
    line: int
    names: tuple[str, ...]
    kind: str
    value: ast.expr
    carried: ast.expr | None
    readers: tuple[SourceLine, ...]
    bytes_per_step: float
    tensor_bytes_per_step: float

    @property
    def name(self) -> str:
        """All names, in quotes."""
        return listed([f"`{name}`" for name in self.names])


def keep_without_graph(
    statement: KeepingStatement, lines: Sequence[str], tree: ast.Module, others: Sequence[ast.Module] = ()
) -> Fix:
    """Detach what is kept: safe where nothing else reads the holder, for a person to review where something does.

    `others` are the other files' trees. What is not plainly a tensor is left to a person.
    """
    if statement.carried is not None:
        edit: CodeEdit | None = detach_carried(statement.file, lines, statement.carried, statement.kind)
        return Fix(
            summary=f"Cut {statement.name} off from the step before where it enters the call; where the loop runs "
            "over the time steps of one sequence, cut once per optimizer step instead.",
            applicability="review",
            changes=(edit,) if edit else (),
        )
    if statement.kind == "Tensor":  # what is added to it is one, too
        edit = detach_tensor(statement.file, lines, statement.value)
    else:
        edit = detach_value(statement.file, lines, tree, statement.value, others)
    left = _what_is_left(statement)
    if edit is None:
        return Fix(
            summary=f"Detach each tensor that this line puts into {statement.name}: `.detach()`, or `.item()` for "
            f"a number.{left}",
            applicability="manual",
        )
    if statement.readers:
        places = ", ".join(str(reader) for reader in statement.readers[:3])
        return Fix(
            summary=f"Keep the value without its graph; check that {places}, which also reads {statement.name}, "
            f"calls no backward on it.{left}",
            applicability="review",
            changes=(edit,),
        )
    return Fix(
        summary=f"Keep the value without its graph; nothing else reads the graph.{left}",
        applicability="safe",
        changes=(edit,),
    )


def keep_copy_of_part(
    names: Sequence[str], file: str, lines: Sequence[str], tree: ast.Module, value: ast.expr
) -> Fix | None:
    """Copy a part of a tensor before it is kept, since a view keeps all of it; None of what is plainly no such part."""
    if not _is_part(value, tree):
        return None
    edit = replace_expression(file, lines, value, f"{as_receiver(lines, value)}.clone()")
    quoted = listed([f"`{name}`" for name in names])
    return Fix(
        summary=f"Keep a copy of the part: a slice shares the memory of the tensor that it was cut from, all of which "
        f"{quoted} then {'keeps' if len(names) == 1 else 'keep'}. If the copies are still too many, bound {quoted}.",
        applicability="safe",
        changes=(edit,),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """How many of its `unit` (`entries`, `tensors`; of a tensor that grows, `steps`) take a hundredth of the memory.

    It bounds the holder `name` of type `kind`.
    """

    name: str
    kind: str
    most: int
    unit: str
    is_on_device: bool


def keep_fewer(bounds: Sequence[Bound]) -> Fix:
    """Bound holders that keep no graphs, the largest first; only a person knows how much of them is needed."""
    ways = ["keep numbers instead of tensors (`.item()`)"]
    ways.append(
        "move what is kept off the device (`.cpu()`)" if bounds[0].is_on_device else "write it to disk now and then"
    )
    if len(bounds) == 1:
        ways, take = [*_how(bounds[0]), *ways], _take(bounds[0])
        summary = (
            f"Bound `{bounds[0].name}`: {', '.join(ways[:-1])}, or {ways[-1]}. {take[0].upper()}{take[1:]} 1 % of the "
        )
        return Fix(summary=f"{summary}memory there is.", applicability="manual")
    parts = [f"`{one.name}` ({'; '.join((*_how(one), _take(one)))} 1 %)" for one in bounds]
    return Fix(
        summary=f"Bound each, so that it takes a hundredth of the memory there is: {listed(parts)}; "
        f"or {', or '.join(ways)}.",
        applicability="manual",
    )


def listed(parts: Sequence[str]) -> str:
    """`a`; `a` and `b`; `a`, `b` and 3 more."""
    shown = list(parts)
    if len(shown) > MOST_BOUNDS:
        shown = [*shown[: MOST_BOUNDS - 1], f"{len(shown) - MOST_BOUNDS + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _how(bound: Bound) -> list[str]:
    return [HOW[bound.kind].format(most=bound.most)] if bound.kind in HOW and bound.unit == "entries" else []


def _take(bound: Bound) -> str:
    return f"what {bound.most:,} steps add takes" if bound.unit == "steps" else f"{bound.most:,} {bound.unit} take"


def _what_is_left(statement: KeepingStatement) -> str:
    """What detaching does not give back: the tensors, from a tenth of the growth on."""
    left, whole = statement.tensor_bytes_per_step, statement.bytes_per_step
    if left < LEAST_LEFT_SHARE * whole:
        return ""
    return (
        f" That leaves the tensors themselves, {format_bytes(min(left, whole))} of {format_bytes(whole)} per step: "
        f"bound {statement.name} as well, or keep numbers (`.item()`)."
    )


def _is_part(value: ast.expr, tree: ast.Module) -> bool:
    """Whether it is a slice of what is plainly a tensor; an index that is a tensor or a list makes a copy itself."""
    match value:
        case ast.Call(func=ast.Attribute(value=inner, attr="detach"), args=[], keywords=[]):
            return _is_part(inner, tree)
        case ast.Subscript(value=whole, slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            is_cut = any(_is_number(part) or _has_ends(part) for part in parts)
            return is_cut and all(_is_basic(part) for part in parts) and is_tensor(whole, tree)
    return False


def _is_basic(index: ast.expr) -> bool:
    return _is_number(index) or isinstance(index, ast.Slice | ast.Constant)


def _has_ends(index: ast.expr) -> bool:
    return isinstance(index, ast.Slice) and any((index.lower, index.upper, index.step))


def _is_number(index: ast.expr) -> bool:
    match index:
        case ast.Constant(value=int()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
            return True
    return False
