"""Keeps a value on the device instead of reading it: mechanical edits for the forms in which that is right."""

import ast
from collections.abc import Sequence

from efprof.fixes.source_edit import as_receiver, replace_expression
from efprof.model import CodeEdit, Fix, SourceFile

MANY_READS = 2
"""From two reads per step on, the line is in an inner loop."""

NEEDED_AT_ONCE = (
    "Where the program needs the number at once, have one read serve several calls, or compute it on the CPU."
)

MIN_APART = 2
"""A read in every step is what is to end."""


def read_less(file: SourceFile, line: int, *, calls: Sequence[str], reads_per_step: float, every: int) -> Fix:
    """Stop the line from reading in every step; read `every` so many steps, its cost no longer matters.

    At an `every` of 1 the cost matters in no step: no interval is advised then.
    """
    rarely = max(MIN_APART, every)
    kept = keep_on_device(file, line)
    if kept is not None:
        summary = f"Keep the value on the device with `.detach()`, and read it {rarely} steps apart or at the end."
        return Fix.by(kept, "review", summary, "a tensor is kept where a number was")
    often = f" Read once in {every} steps, it costs next to nothing." if every >= MIN_APART else ""
    return Fix.by_hand(f"{_advice(calls, reads_per_step)}{often}")


def keep_on_device(file: SourceFile, line: int) -> CodeEdit | None:
    """`total += loss.item()` becomes `total += loss.detach()`, an appended value too; None for any other form.

    In those forms the value is only kept: a tensor takes its place, and who reads the sum later reads once.
    """
    for node in ast.walk(file.tree):
        match node:
            case (
                ast.AugAssign(op=ast.Add(), value=value)
                | ast.Expr(value=ast.Call(func=ast.Attribute(attr="append" | "appendleft"), args=[value]))
            ) if node.lineno == line:
                read = _read_in(value)
                if read is not None and sum(map(_is_read, ast.walk(value))) == 1:  # an edit must end all that is read
                    call, tensor = read
                    return replace_expression(file, call, f"{as_receiver(file, tensor)}.detach()")
    return None


def _advice(calls: Sequence[str], reads_per_step: float) -> str:
    if "bool" in calls:
        return "Let the tensor decide on the device (`torch.where`, a mask), or check it only now and then."
    if reads_per_step >= MANY_READS:
        instead = f"Collect the step's {reads_per_step:.0f} values on the device (`torch.stack`) and read them at once."
    else:
        instead = (
            "Keep the value on the device (`.detach()`), and read it only now and then. Needed in every step, it can "
            "be copied to pinned memory with `non_blocking=True`, and read once an event after the copy has passed."
        )
    return f"{instead} {NEEDED_AT_ONCE}"


def _read_in(value: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """The one read in a value and its tensor: `loss.item()`, `loss.detach().cpu().item()`, `float(loss) * size`."""
    match value:
        case (
            ast.Call(func=ast.Attribute(value=tensor, attr="item"), args=[], keywords=[])
            | ast.Call(func=ast.Name(id="float"), args=[tensor], keywords=[])
        ):
            return value, _without_copies(tensor)
        case ast.BinOp(op=ast.Mult() | ast.Div(), left=left, right=right):
            found = [read for read in (_read_in(left), _read_in(right)) if read is not None]
            return found[0] if len(found) == 1 else None
    return None


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.expr) and not isinstance(node, ast.BinOp) and _read_in(node) is not None


def _without_copies(tensor: ast.expr) -> ast.expr:
    match tensor:
        case ast.Call(func=ast.Attribute(value=inner, attr="cpu" | "detach"), args=[], keywords=[]):
            return _without_copies(inner)
    return tensor
