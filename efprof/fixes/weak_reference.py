"""Takes a reference cycle apart: `self.owner = owner` becomes `self.owner = weakref.proxy(owner)`."""

import ast
import re

from efprof.fixes.source_edit import replace_expression, text_of
from efprof.model import CodeEdit, Fix, SourceFile


def keep_weakly(file: SourceFile, name: str, value: ast.expr | None) -> Fix:
    """The edit of a statement that stores `value` as `name`, where one name that is never None says what is stored."""
    imports = _import_of_weakref(file)
    if not isinstance(value, ast.Name) or _may_be_none(file.tree, value) or imports is None:
        return Fix.by_hand(
            f"Keep `{name}` as a weak reference (`weakref.proxy`, where somebody else keeps the object as long as it "
            f"is needed), or set it to None at the end of the step."
        )
    edit = replace_expression(file, value, f"weakref.proxy({value.id})")
    return Fix(
        summary=f"Keep `{name}` as a weak reference, so that nothing is kept in a circle; check that somebody else "
        "keeps the object as long as it is needed.",
        applicability="review",
        changes=(*imports, edit),
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
    errors = [part for part in parts if isinstance(part, ast.Name) and _is_caught(part, tree)]
    return errors[0] if len(errors) == 1 else None


def _is_caught(value: ast.Name, tree: ast.Module) -> bool:
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return any(node.name == value.id and node.lineno <= value.lineno <= (node.end_lineno or 0) for node in handlers)


def _may_be_none(tree: ast.Module, value: ast.Name) -> bool:
    """Whether it is an argument whose default or annotation says that it may be None, of which there is no proxy."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    around = (node for node in functions if node.lineno <= value.lineno <= (node.end_lineno or 0))
    return any(re.search(rf"\b{value.id}\b.*(None|Optional)", ast.unparse(node.args)) for node in around)


def _import_of_weakref(file: SourceFile) -> list[CodeEdit] | None:
    """The edit that imports it above the first import, none where the file does so; None where there is no import."""
    imports = [node for node in file.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if any(each.name == "weakref" and not each.asname for node in imports for each in node.names):
        return []
    usable = [node.lineno for node in imports if getattr(node, "module", None) != "__future__"]
    if not usable:
        return None
    old = file.lines[usable[0] - 1]
    return [CodeEdit(file=file.name, line=usable[0], old=old, new=f"import weakref\n{old}")]
