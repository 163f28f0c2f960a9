"""Finds what a training loop takes its batches from, by the frames it runs in and without calling the program."""

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.recorder.variables import locals_of, may_read_locals

PASSING_ON = ("enumerate", "tqdm", "zip", "iter", "islice", "chain", "cycle")
"""Calls that yield what their arguments yield."""

WATCHED_ALREADY = (DataLoader, _BaseDataLoaderIter)

NOTHING = object()


def classes_around(frame: FrameType | None, is_user_code: Callable[[CodeType], bool]) -> list[type]:
    """Classes of the iterators that the loops around a frame's line take their items from, the innermost first.

    Only those whose `__next__`, or `__iter__` as a generator, is a Python function: no other can be watched.
    """
    found: dict[type, None] = {}
    while frame is not None:
        if is_user_code(frame.f_code):
            for expression in _iterated_at(frame.f_code.co_filename, frame.f_lineno):
                found.update(dict.fromkeys(_classes_of(expression, frame)))
        frame = frame.f_back
    return list(found)


def _iterated_at(file: str, line: int) -> list[ast.expr]:
    """What the loops around a line run over, the innermost first."""
    tree = _parsed(file)
    around = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.For | ast.While) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    around.sort(key=lambda node: -node.lineno)
    return [expression for node in around for expression in _expressions_of(node)]


def _expressions_of(loop: ast.For | ast.While) -> list[ast.expr]:
    """What a `for` statement runs over; what is asked by `next(...)` within a loop."""
    asked = [
        node.args[0]
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next" and node.args
    ]
    return [*([loop.iter] if isinstance(loop, ast.For) else []), *asked]


@cache
def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):  # typed in, or written for another Python
        return None


def _classes_of(expression: ast.expr, frame: FrameType) -> Iterator[type]:
    # Not `f_locals`: before Python 3.13 it leaves a copy in the frame, which would keep a step's tensors alive.
    names = {**frame.f_globals, **(locals_of(frame) if may_read_locals(frame.f_code) else {})}
    if not isinstance(expression, ast.Call):
        yield from _class_of(type(_resolved(expression, names)))
        return
    name = expression.func.attr if isinstance(expression.func, ast.Attribute) else getattr(expression.func, "id", "")
    if name in PASSING_ON:
        for argument in expression.args:
            yield from _classes_of(argument, frame)
    made = _resolved(expression.func, names)
    if isinstance(made, type):
        yield from _class_of(made)


def _resolved(expression: ast.expr, names: dict[str, Any]) -> object:
    """What a name, or a chain of attributes, stands for; NOTHING where finding out would run code."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id, NOTHING)
    if not isinstance(expression, ast.Attribute):
        return NOTHING
    owner = _resolved(expression.value, names)
    value = inspect.getattr_static(owner, expression.attr, NOTHING)
    return NOTHING if hasattr(type(value), "__get__") and not isinstance(value, type) else value


def _class_of(kind: type) -> Iterator[type]:
    """The class itself, if it iterates in Python, or the one that its `__iter__` makes."""
    if issubclass(kind, WATCHED_ALREADY):
        return
    if can_be_watched(kind):
        yield kind
    elif isinstance(start := getattr(kind, "__iter__", None), FunctionType):
        made = _made_by(start)
        if made is not None and not issubclass(made, WATCHED_ALREADY) and can_be_watched(made):
            yield made


def can_be_watched(kind: type) -> bool:
    """Whether it yields its items by a Python function of its own."""
    return isinstance(getattr(kind, "__next__", None), FunctionType) or is_generator(kind)


def is_generator(kind: type) -> bool:
    """Whether its `__iter__` is a generator function."""
    return inspect.isgeneratorfunction(getattr(kind, "__iter__", None))


def _made_by(start: FunctionType) -> type | None:
    """The class that an `__iter__` returns an object of, as in `return Batches(self)`."""
    tree = _parsed(start.__code__.co_filename)
    first = start.__code__.co_firstlineno
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == "__iter__" and _first_line(node) == first:
            for returned in ast.walk(node):
                if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Call):
                    made = _resolved(returned.value.func, start.__globals__)
                    if isinstance(made, type):
                        return made
    return None


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
