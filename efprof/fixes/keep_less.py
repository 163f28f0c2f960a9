"""The change to a statement that keeps tensors alive: without their graph, or no more than so many of them."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from efprof.fixes.detach import CLONED, DETACHED, detach_carried, detach_tensor, detach_value
from efprof.fixes.kept_value import KeptValue
from efprof.fixes.source_edit import as_receiver, replace_expression
from efprof.model import CodeEdit, Fix
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
    "lru_cache": "give it a limit (`@lru_cache(maxsize={most})`)",
}
"""To bound a container, by its type."""
WAYS_TO_BOUND = (
    "(a list: `collections.deque(maxlen=...)`; a dictionary: drop the oldest keys; a queue: `maxsize=...`), write it "
    "to a file every so often, or keep one number of what is put into it"
)
"""The same where the type is one of many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepingStatement:
    """What a statement of `file` keeps in holders of these `names`, the first of type `kind` with such entries.

    `readers` are the lines that may need the graphs of what is kept. Of the `bytes_per_step` that it keeps,
    `tensor_bytes_per_step` are the tensors themselves, without their graphs. `is_view` where they were counted to be
    a small part of their storages.
    """

    file: str
    names: tuple[str, ...]
    kind: str
    entry: tuple[str, ...]
    kept: KeptValue
    readers: tuple[int, ...]
    bytes_per_step: float
    tensor_bytes_per_step: float
    is_view: bool = False

    @property
    def name(self) -> str:
        """All names, in quotes."""
        return listed([f"`{name}`" for name in self.names])


def keep_without_graph(statement: KeepingStatement, lines: Sequence[str]) -> Fix:
    """Detach what is kept: safe where nothing else reads the holder, for a person to review where something does.

    What was not counted to be a tensor is left to a person.
    """
    how = CLONED if statement.is_view else DETACHED
    carried = statement.kept.carried
    if carried is not None:
        edit: CodeEdit | None = detach_carried(statement.file, lines, carried, statement.kind)
        return Fix(
            summary=f"Cut {statement.name} off from the step before where it enters the call; where the loop runs "
            "over the time steps of one sequence, cut once per optimizer step instead.",
            applicability="review",
            changes=(edit,) if edit else (),
        )
    if statement.kind == "Tensor":  # what is added to it is one, too
        edit = detach_tensor(statement.file, lines, statement.kept.value, how)
    else:
        edit = detach_value(statement.file, lines, statement.kept, statement.entry, how)
    left = _what_is_left(statement)
    if edit is None:
        return Fix(
            summary=f"Detach each tensor that this line puts into {statement.name}: `{how}`, or `.item()` for "
            f"a number.{left}",
            applicability="manual",
        )
    if statement.readers:
        places = ", ".join(f"{statement.file}:{line}" for line in statement.readers[:3])
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


def keep_copies(file: str, lines: Sequence[str], value: ast.expr, name: str) -> Fix:
    """Copy what is kept of a storage that was counted to be larger: a view of a tensor shares all of its memory."""
    edit = replace_expression(file, lines, value, f"{as_receiver(lines, value)}.clone()")
    return Fix(
        summary=f"Keep a copy: what `{name}` keeps is a small part of a tensor whose whole memory stays with it (or "
        f"`.item()`, where it is one number). If the copies are still too many, bound `{name}`.",
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
    if statement.is_view:
        return " `.detach()` alone would keep the larger memory that the tensor is a part of; `.item()` keeps a number."
    if left < LEAST_LEFT_SHARE * whole:
        return ""
    return (
        f" That leaves the tensors themselves, {format_bytes(min(left, whole))} of {format_bytes(whole)} per step: "
        f"bound {statement.name} as well, or keep numbers (`.item()`)."
    )
