"""Takes a reference cycle apart: `self.owner = owner` becomes `self.owner = weakref.proxy(owner)`."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from efprof.fixes.save_for_backward import save_for_backward
from efprof.fixes.source_edit import replace_expression, text_of
from efprof.model import CodeEdit, Fix


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleStatement:
    """A statement of `file` that stores `value` as `name`; `value` is None where it defines a function or a field.

    `kind` is `method` for a bound method, `error` for a caught error, `function` for a function that is defined there,
    anything else for an object; `can_be_weak` tells whether Python can refer weakly to that; `is_tensor` whether it is
    one, which nobody else keeps as long as its operation's backward needs it.
    """

    file: str
    lines: Sequence[str]
    tree: ast.Module
    name: str
    kind: str
    value: ast.expr | None
    can_be_weak: bool
    is_tensor: bool


def break_cycle(statement: CycleStatement | None) -> Fix:
    """An edit where one name says what is referred to; behaviour may change, so a person reviews it."""
    if statement is None:
        return _by_hand("Take one reference of the circle away at the end of the step: `del`, or set it to None.")
    name, value = statement.name, statement.value
    match statement.kind:
        case "method":
            return _by_hand(
                f"Keep `{name}` as `weakref.WeakMethod(...)` and call it by `{name}()(...)`, or look the method up "
                "when it is called."
            )
        case "function":
            return _by_hand(
                f"Give `{name}` to itself as an argument instead of naming it from within, make it a function of the "
                f"module, or `{name} = None` once it has been used."
            )
        case "error" if isinstance(value, ast.Name):
            return without_traceback(statement.file, statement.lines, name, value)
    if statement.is_tensor:
        return save_for_backward(statement.file, statement.lines, statement.tree, value) or _by_hand(
            f"Take the tensor out of `{name}` once the step has used it (`del`, or None), or keep `.detach()` of it "
            "where no gradient goes through what is kept."
        )
    if isinstance(value, ast.Name) and statement.can_be_weak and not may_be_none(statement.tree, value):
        return _weakly(statement, value)
    return _by_hand(
        f"Keep `{name}` as a weak reference (`weakref.proxy`, where somebody else keeps the object as long as it is "
        f"needed), or set it to None at the end of the step."
    )


def without_traceback(file: str, lines: Sequence[str], name: str, error: ast.expr) -> Fix:
    """The edit of a statement that keeps a caught error in `name`."""
    edit = replace_expression(file, lines, error, f"{text_of(lines, error)}.with_traceback(None)")
    return Fix(
        summary=f"Keep the error in `{name}` without its traceback, which keeps the variables of every function that "
        "it came through; who prints it later sees its message alone.",
        applicability="review",
        changes=(edit,),
    )


def caught_error(value: ast.expr, tree: ast.Module) -> ast.Name | None:
    """The name of an error in the handler that caught it: `error`, or that of `(step, error)`."""
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    errors = [part for part in parts if isinstance(part, ast.Name) and _is_caught(part, tree)]
    return errors[0] if len(errors) == 1 else None


def may_be_none(tree: ast.Module, value: ast.Name) -> bool:
    """Whether it is an argument whose default or annotation says that it may be None, of which there is no proxy."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    around = (node for node in functions if node.lineno <= value.lineno <= (node.end_lineno or 0))
    return any(name == value.id and is_none for node in around for name, is_none in _arguments_of(node))


def _by_hand(advice: str) -> Fix:
    return Fix(summary=advice, applicability="manual")


def _is_caught(value: ast.Name, tree: ast.Module) -> bool:
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return any(node.name == value.id and node.lineno <= value.lineno <= (node.end_lineno or 0) for node in handlers)


def _weakly(statement: CycleStatement, value: ast.Name) -> Fix:
    lines = statement.lines
    edit = replace_expression(statement.file, lines, value, f"weakref.proxy({text_of(lines, value)})")
    return Fix(
        summary=f"Keep `{statement.name}` as a weak reference, so that nothing is kept in a circle; check that "
        "somebody else keeps the object as long as it is needed.",
        applicability="review",
        changes=(*_import_of_weakref(statement), edit),
    )


def _arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, bool]]:
    """Each argument's name, and whether it may be None."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    defaults = [*[None] * first_default, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
        written = ast.unparse(argument.annotation) if argument.annotation else ""
        is_none = isinstance(default, ast.Constant) and default.value is None
        yield argument.arg, is_none or "None" in written or "Optional" in written


def _import_of_weakref(statement: CycleStatement) -> tuple[CodeEdit, ...]:
    """The edit that imports it ahead of the first import that may follow others; none where the file does so."""
    body = statement.tree.body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    if any(each.name == "weakref" and not each.asname for node in imports for each in node.names):
        return ()
    future = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    docstrings = [node for node in body[:1] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    above = future or docstrings
    usable = [node for node in imports if node not in future]
    first = usable[0] if usable else body[min(body.index(above[-1]) + 1, len(body) - 1) if above else 0]
    line = min([first.lineno, *(node.lineno for node in getattr(first, "decorator_list", ()))])
    old = statement.lines[line - 1]
    return (CodeEdit(file=statement.file, line=line, old=old, new=f"import weakref\n{old}"),)
