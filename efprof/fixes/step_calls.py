"""Edits of what a loop runs: no kept or unused graph, cleared gradients, activation checkpointing."""

import ast
import builtins
from collections.abc import Callable, Sequence

from efprof.fixes.source_edit import arguments_of, calls_on, cut, replace_expression, text_of
from efprof.model import CodeEdit, Fix, SourceFile, SourceLine, called_name, nodes_on

BACKWARD_NAMES = frozenset({"backward", "manual_backward"})
"""`Tensor.backward`, `torch.autograd.backward`, and what Accelerate and Lightning call theirs; all hand these on."""
KEEPING = frozenset({"retain_graph", "create_graph"})

CLEARING = "zero_grad"
BY_HAND = (
    "Call `zero_grad(set_to_none=True)` of the optimizer once between its step and the backward pass that makes its "
    "next gradients."
)
RETUNE = "Then tune the learning rate again: this one was chosen with sums of gradients."

UNDER = "with torch.no_grad():"
TRAINS = frozenset({"backward", "step", "grad"})
"""Calls that a loop which only evaluates has none of."""

REPEATING = (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ListComp, ast.GeneratorExp)

TENSOR_METHODS = frozenset(
    {
        "add", "append", "backward", "bool", "chunk", "clamp", "clone", "contiguous", "cpu", "cuda", "detach",
        "div", "double", "expand", "flatten", "float", "half", "item", "long", "matmul", "max", "mean", "min",
        "mul", "norm", "permute", "pow", "reshape", "split", "squeeze", "sqrt", "stack", "step", "sub", "sum",
        "to", "tolist", "transpose", "type", "unflatten", "unsqueeze", "view", "zero_grad",
    }
)  # fmt: skip
"""Of methods by these names it is not known that they are a module's or the user's own."""


def drop_graph(file: SourceFile, line: int, told: str) -> Fix:
    """Take `told` out; an edit where the line has one call of backward, given such arguments as a plain `True`."""
    nodes = nodes_on(file.tree, line)
    calls = [one for one in nodes if isinstance(one, ast.Call) and called_name(one) in BACKWARD_NAMES]
    given = [one for one in calls[0].keywords if one.arg in KEEPING] if len(calls) == 1 else []
    is_plain = bool(given) and all(isinstance(one.value, ast.Constant) and one.value.value is True for one in given)
    edit = _without(file, calls[0], given) if is_plain else None
    dropped = " and ".join(f"`{one.arg}=True`" for one in given) if is_plain else f"`{told}=True`"
    summary = f"Drop {dropped}: backward then releases the graph as it goes."
    return Fix.by(edit, "review" if told == "create_graph" else "safe", summary)


def clear_gradients(steps: Sequence[SourceLine | None], file: Callable[[str], SourceFile]) -> Fix:
    """Clear each optimizer's gradients below the line that steps it; by hand where that is not plain to see.

    A step is None where it is not known, or where a pass before it makes gradients that another step may need.
    """
    edits = [None if step is None else _clearing_edit(file(step.file), step.line) for step in steps]
    found = [edit for edit in edits if edit is not None]
    if not found or len(found) < len(edits):
        return Fix.by_hand(f"{BY_HAND} {RETUNE}")
    calls = " and ".join(dict.fromkeys(f"`{edit.new.splitlines()[-1].strip()}`" for edit in found))
    return Fix(
        summary=f"Clear the gradients after the step has used them: {calls}. {RETUNE}",
        applicability="review",
        changes=tuple(dict.fromkeys(found)),
    )


def unscale_above(file: SourceFile, clip: SourceLine, steps: Sequence[SourceLine | None]) -> Fix:
    """Unscale the gradients of each of these steps' optimizers above the line that clips them.

    By hand where the names may be others there, or the two lines may not run once each: torch refuses to unscale twice.
    """
    calls = dict.fromkeys(None if step is None else _unscaling(file, clip, step) for step in steps)
    new = [call for call in calls if call is not None]
    old = file.lines[clip.line - 1] if new else ""
    indent = old[: len(old) - len(old.lstrip())]
    found = [one for one in nodes_on(file.tree, clip.line) if isinstance(one, ast.Expr | ast.Assign)]
    if len(new) < len(calls) or [(one.lineno, one.col_offset) for one in found] != [(clip.line, len(indent))]:
        return Fix.by_hand(f"Call `scaler.unscale_(optimizer)` once for each update, above {clip}.")
    edit = CodeEdit(file=file.name, line=clip.line, old=old, new="\n".join([*(indent + call for call in new), old]))
    told = " and ".join(f"`{call}`" for call in new)
    return Fix.by(edit, "review", f"Unscale the gradients above the line that clips them: {told}.")


def without_graph(file: SourceFile, loop: SourceLine) -> Fix:
    """The edit of the statement that begins at this line; by hand where it trains as well, or holds long texts."""
    found = [one for one in ast.walk(file.tree) if isinstance(one, ast.stmt) and one.lineno == loop.line]
    inside = list(ast.walk(found[0])) if found else []
    if any(called_name(one) in TRAINS for one in inside):
        return Fix.by_hand(f"Turn gradients off where {loop} evaluates: `with torch.set_grad_enabled(is_training):`.")
    summary = f"Put the loop at {loop} under `{UNDER}`."
    texts = (one for one in inside if isinstance(one, ast.Constant | ast.JoinedStr))
    if not found or "import torch" not in file.lines or any(one.lineno != one.end_lineno for one in texts):
        return Fix.by_hand(summary)
    lines = file.lines[loop.line - 1 : found[0].end_lineno]
    new = [lines[0][: found[0].col_offset] + UNDER, *(f"    {line}".rstrip() for line in lines)]
    edit = CodeEdit(file=file.name, line=loop.line, old="\n".join(lines), new="\n".join(new))
    return Fix.by(edit, "safe", summary)


def checkpoint_call(file: SourceFile, line: int) -> CodeEdit | None:
    """`f(x)` -> `torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)`.

    None where the line does not have exactly one call that is neither Python's nor torch's own, where it spans lines,
    and where the file does not know `torch` by its name.
    """
    torch_names = _imported_from_torch(file.tree)
    calls = [call for call in calls_on(file.tree, line) if _is_of_the_user(call.func, torch_names)]
    above = ast.Module([node for node in file.tree.body if isinstance(node, ast.Import)], [])
    if len(calls) != 1 or "torch" not in _imported_from_torch(above):
        return None
    (call,) = calls
    is_starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    is_opaque = is_starred or not all(keyword.arg for keyword in call.keywords)
    if call.end_lineno != line or not call.args or is_opaque:
        return None
    inside = ", ".join([text_of(file, call.func), *arguments_of(file, call), "use_reentrant=False"])
    return replace_expression(file, call, f"torch.utils.checkpoint.checkpoint({inside})")


def _without(file: SourceFile, call: ast.Call, dropped: Sequence[ast.keyword]) -> CodeEdit | None:
    """The call without these arguments, on one line; None where a comment in it may be about what is dropped."""
    if "#" in text_of(file, call):
        return None
    given = ", ".join(arguments_of(file, call, dropped))
    return replace_expression(file, call, f"{text_of(file, call.func)}({given})")


def _clearing_edit(file: SourceFile, line: int) -> CodeEdit | None:
    """None where the step is not a statement alone on its lines that names one optimizer."""
    for statement in ast.walk(file.tree):
        if not isinstance(statement, ast.Expr | ast.Assign) or statement.lineno != line:
            continue
        optimizer, last = _stepped_by(statement.value), statement.end_lineno or line
        old = file.lines[last - 1]
        before, _ = cut(file.lines[line - 1], statement.col_offset)
        _, after = cut(old, statement.end_col_offset or 0)
        if optimizer is not None and not before.strip() and after.strip()[:1] in ("", "#"):
            new = f"{old}\n{before}{optimizer}.{CLEARING}(set_to_none=True)"
            return CodeEdit(file=file.name, line=last, old=old, new=new)
    return None


def _stepped_by(call: ast.expr) -> str | None:
    """The optimizer of `optimizer.step()` or `scaler.step(optimizer)`; None of a step with a closure."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return None
    optimizer, arguments = call.func.value, [*call.args, *(keyword.value for keyword in call.keywords)]
    if "scaler" in ast.unparse(optimizer).lower() and arguments:
        optimizer, arguments = arguments[0], []
    is_named = all(isinstance(node, ast.Name | ast.Attribute | ast.expr_context) for node in ast.walk(optimizer))
    return ast.unparse(optimizer) if is_named and not arguments else None


def _unscaling(file: SourceFile, clip: SourceLine, step: SourceLine) -> str | None:
    """`scaler.unscale_(optimizer)` for `scaler.step(optimizer)`; None where the lines may run by other turns."""
    at_clip, at_step = nodes_on(file.tree, clip.line), nodes_on(file.tree, step.line)
    loops = [one for one in at_clip if isinstance(one, REPEATING) and one not in at_step]
    parts = [one for one in at_step if isinstance(one, (*REPEATING, ast.If)) and one not in at_clip]
    if loops or parts or (step.file, step.function) != (clip.file, clip.function) or clip.line >= step.line:
        return None
    for call in calls_on(file.tree, step.line):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name() | ast.Attribute() as scaler, attr="step"),
                args=[ast.Name() | ast.Attribute() as optimizer, *_],
            ):
                return f"{ast.unparse(scaler)}.unscale_({ast.unparse(optimizer)})"
    return None


def _is_of_the_user(function: ast.expr, torch_names: frozenset[str]) -> bool:
    root = function
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name) or root.id in torch_names:
        return False
    if isinstance(function, ast.Name):
        return not hasattr(builtins, function.id)
    return not (isinstance(function, ast.Attribute) and function.attr in TENSOR_METHODS)


def _imported_from_torch(tree: ast.Module) -> frozenset[str]:
    """The names by which the file knows torch and what is in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or "torch" for alias in node.names if alias.name.partition(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
    return frozenset(names)
