"""Puts a call under activation checkpointing: what it makes for backward is made anew there instead of kept."""

import ast
import builtins
from collections.abc import Sequence

from efprof.fixes.source_edit import replace_expression, text_of
from efprof.model import CodeEdit

TENSOR_METHODS = frozenset(
    {
        "add", "append", "backward", "bool", "chunk", "clamp", "clone", "contiguous", "cpu", "cuda", "detach",
        "div", "double", "expand", "flatten", "float", "half", "item", "long", "matmul", "max", "mean", "min",
        "mul", "norm", "permute", "pow", "reshape", "split", "squeeze", "sqrt", "stack", "step", "sub", "sum",
        "to", "tolist", "transpose", "type", "unflatten", "unsqueeze", "view", "zero_grad",
    }
)  # fmt: skip
"""Of methods by these names it is not known that they are a module's or the user's own."""


def checkpoint_call(file: str, lines: Sequence[str], tree: ast.Module, line: int) -> CodeEdit | None:
    """`f(x)` -> `torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)`.

    None where the line does not have exactly one call that is neither Python's nor torch's own, where it spans lines,
    and where the file does not know `torch` by its name.
    """
    torch_names = _imported_from_torch(tree)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno == line and _is_of_the_user(node.func, torch_names)
    ]
    above = ast.Module([node for node in tree.body if isinstance(node, ast.Import)], [])
    if len(calls) != 1 or "torch" not in _imported_from_torch(above):
        return None
    (call,) = calls
    is_simple = not any(isinstance(argument, ast.Starred) for argument in call.args)
    is_simple = is_simple and all(keyword.arg for keyword in call.keywords)
    if call.end_lineno != line or not call.args or not is_simple:
        return None
    given = [text_of(lines, argument) for argument in call.args]
    given += [f"{keyword.arg}={text_of(lines, keyword.value)}" for keyword in call.keywords]
    inside = ", ".join([text_of(lines, call.func), *given, "use_reentrant=False"])
    return replace_expression(file, lines, call, f"torch.utils.checkpoint.checkpoint({inside})")


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
            found = [alias for alias in node.names if alias.name.partition(".")[0] == "torch"]
            names |= {alias.asname or alias.name.partition(".")[0] for alias in found}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
    return frozenset(names)
