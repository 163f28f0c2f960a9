"""The change to a statement that keeps tensors alive: without their graph, or no more than so many of them."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from efprof.fixes.detach import detach_carried, detach_value
from efprof.model import CodeEdit, Fix, SourceLine


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepingStatement:
    """What `value` a statement of `file` keeps in the holder `name` of type `kind`.

    `carried` is the argument through which the holder's old value enters the call that makes its new one;
    `readers` are the lines that may need the graphs of what is kept.
    """

    file: str
    line: int
    name: str
    kind: str
    value: ast.expr
    carried: ast.expr | None
    readers: tuple[SourceLine, ...]


def keep_without_graph(statement: KeepingStatement, lines: Sequence[str], tree: ast.Module) -> Fix:
    """Detach what is kept: safe where nothing else reads the holder, for a person to review where something does."""
    if statement.carried is not None:
        edit: CodeEdit | None = detach_carried(statement.file, lines, statement.carried, statement.kind)
        return Fix(
            summary=f"Cut `{statement.name}` off from the step before where it enters the call; where the loop runs "
            "over the time steps of one sequence, cut once per optimizer step instead.",
            applicability="review",
            changes=(edit,) if edit else (),
        )
    edit = detach_value(statement.file, lines, tree, statement.value)
    if edit is None:
        return Fix(
            summary=f"Detach each tensor that this line puts into `{statement.name}`: `.detach()`, or `.item()` for "
            "a number.",
            applicability="manual",
        )
    if statement.readers:
        places = ", ".join(str(reader) for reader in statement.readers[:3])
        return Fix(
            summary=f"Keep the value without its graph; check that {places}, which also reads `{statement.name}`, "
            "calls no backward on it.",
            applicability="review",
            changes=(edit,),
        )
    return Fix(
        summary="Keep the value without its graph; nothing else reads the graph.", applicability="safe", changes=(edit,)
    )


def keep_fewer(name: str, kind: str, most_kept: int) -> Fix:
    """Bound the holder `name` of type `kind`, which keeps no graph; only a person knows how much of it is needed."""
    how = {
        "list": f"make it `collections.deque(maxlen={most_kept})`, ",
        "deque": f"give it `maxlen={most_kept}`, ",
        "dict": f"drop the oldest entries beyond {most_kept}, ",
        "Tensor": "write it to disk every so often, ",
    }.get(kind, "")
    return Fix(
        summary=f"Bound `{name}`: {how}keep numbers instead of tensors (`.item()`), or move what is kept "
        f"off the device (`.cpu()`). {most_kept} of them take 1 % of the memory there is.",
        applicability="manual",
    )
