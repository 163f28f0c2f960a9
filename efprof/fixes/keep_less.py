"""The change to a statement that keeps tensors alive: without their graph, or no more than so many of them."""

import ast
from collections.abc import Sequence

from efprof.fixes.kept_value import KeptValue, tensor_in
from efprof.fixes.source_edit import as_receiver, replace_expression, text_of
from efprof.model import Fix

DETACHED, CLONED = ".detach()", ".detach().clone()"
"""The second where what is kept is a view of a larger storage, as `F.mse_loss` gives on a CPU: detaching keeps it."""
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


def keep_without_graph(
    file: str, lines: Sequence[str], kept: KeptValue | None, *, name: str, kind: str, entry: Sequence[str], how: str
) -> Fix:
    """Detach what a statement puts into the holder `name` of type `kind` with such entries; a person reviews it.

    What was not counted to be a tensor is left to a person, and so is a statement that is not known.
    """
    if kept is not None and kept.carried is not None:
        text = text_of(lines, kept.carried)
        parts = f"{kind}(part.detach() for part in {text})"
        new = parts if kind in ("tuple", "list") else f"{as_receiver(lines, kept.carried)}{DETACHED}"
        return Fix(
            summary=f"Cut `{name}` off from the step before where it enters the call; where the loop runs over the "
            "time steps of one sequence, cut once per optimizer step instead.",
            applicability="review",
            changes=(replace_expression(file, lines, kept.carried, new),),
        )
    value: ast.expr | None = None
    if kept is not None:  # what is added to a tensor is one, too
        value = kept.value if kind == "Tensor" else tensor_in(kept, entry)
    if value is None:
        return Fix(
            summary=f"Detach each tensor that is put into `{name}`: `{how}`, or `.item()` for a number.",
            applicability="manual",
        )
    return Fix(
        summary=f"Keep the value without its graph; check that nothing calls backward on what `{name}` keeps.",
        applicability="review",
        changes=(replace_expression(file, lines, value, f"{as_receiver(lines, value)}{how}"),),
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


def keep_fewer(name: str, kind: str, most: int, unit: str, *, elsewhere: str) -> Fix:
    """Bound a holder that keeps no graphs; only a person knows how much of it is needed.

    `most` of its `unit` (`entries`, `tensors`; of a tensor that grows, `steps`) take a hundredth of the memory.
    """
    ways = [HOW[kind].format(most=most)] if kind in HOW and unit == "entries" else []
    ways += ["keep numbers instead of tensors (`.item()`)"]
    take = f"What {most:,} steps add takes" if unit == "steps" else f"{most:,} {unit} take"
    return Fix(
        summary=f"Bound `{name}`: {', '.join(ways)}, or {elsewhere}. {take} 1 % of the memory there is.",
        applicability="manual",
    )
