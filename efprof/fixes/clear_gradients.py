"""Clears the gradients once for each step: `optimizer.zero_grad(set_to_none=True)` above backward or below the step."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from efprof.model import CodeEdit, Fix, SourceLine

CLEARING = "zero_grad"
BY_HAND = (
    "Call `zero_grad(set_to_none=True)` of the optimizer once between its step and the backward pass that makes its "
    "next gradients."
)
RETUNE = "Then choose the learning rate anew: the one in use was tried with sums of gradients."

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FORKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match, *FUNCTIONS)
"""What lies within one of these may run more or less often than what lies around it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnclearedStep:
    """Where an optimizer's gradients come from, and where it steps, if that is known.

    `backward` is the first line that makes gradients for a step; `is_once` says that each such line ran once for it,
    `is_alone` that no other pass adds to them, as a generator's does to its critic's.
    """

    backward: SourceLine
    step: SourceLine | None
    is_once: bool
    is_alone: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The user's files as they ran, their lines and their syntax."""

    lines: Mapping[str, Sequence[str]]
    tree: Callable[[str], ast.Module | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A statement of a file, and the nodes around it from the outside in."""

    file: str
    statement: ast.stmt
    around: tuple[ast.AST, ...]
    is_alone_on_its_lines: bool

    @property
    def forks(self) -> list[tuple[int, int]]:
        """Where each of them begins, which tells them apart."""
        return [_start(node) for node in self.around if isinstance(node, FORKS)]

    @property
    def functions(self) -> list[tuple[int, int]]:
        """The same for functions alone."""
        return [_start(node) for node in self.around if isinstance(node, FUNCTIONS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Insertion:
    place: _Place
    is_above: bool
    call: str


def clear_gradients(steps: Sequence[UnclearedStep], code: Code) -> Fix:
    """Clear each optimizer's gradients where no pass of a step is lost; by hand where that is not plain to see."""
    insertions = [_insertion(step, code) for step in steps]
    found = [insertion for insertion in insertions if insertion is not None]
    if not found or len(found) < len(insertions):
        return Fix(summary=f"{BY_HAND} {RETUNE}", applicability="manual")
    calls = " and ".join(dict.fromkeys(f"`{insertion.call}`" for insertion in found))
    is_above = all(insertion.is_above for insertion in found)
    where = "before this backward pass" if is_above else "after the step, since several passes make up its gradients"
    return Fix(
        summary=f"Clear the gradients {where}: {calls}. {RETUNE}",
        applicability="review",
        changes=tuple(_edits(found, code)),
    )


def clearing_lines(file: str, tree: ast.Module | None) -> tuple[str, ...]:
    """`file:line` of every `zero_grad` that the file calls."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    lines = {call.lineno for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == CLEARING}
    return tuple(f"{file}:{line}" for line in sorted(lines))


def _insertion(step: UnclearedStep, code: Code) -> _Insertion | None:
    stepping = None if step.step is None else _place_of(step.step, code)
    called = None if stepping is None else _called_in(stepping.statement)
    if stepping is None or called is None:
        return None
    optimizer, has_closure = called
    call = f"{optimizer}.{CLEARING}(set_to_none=True)"
    backward = _place_of(step.backward, code)
    if backward is not None and backward.is_alone_on_its_lines and backward.file == stepping.file:
        if backward.forks == stepping.forks and step.is_once and not has_closure:
            return _Insertion(place=backward, is_above=True, call=call)
        if has_closure and _is_body_of_closure(backward, stepping):
            return _Insertion(place=backward, is_above=True, call=call)
    if step.is_alone and stepping.is_alone_on_its_lines and not has_closure:
        return _Insertion(place=stepping, is_above=False, call=call)
    return None


def _place_of(line: SourceLine, code: Code) -> _Place | None:
    """The innermost statement on that line; None where the file is not known."""
    tree = code.tree(line.file)
    return None if tree is None else _place_in(tree, (), line, code.lines[line.file])


def _place_in(node: ast.AST, around: tuple[ast.AST, ...], line: SourceLine, lines: Sequence[str]) -> _Place | None:
    for block in _blocks(node):
        for statement in block:
            first, last = statement.lineno, statement.end_lineno or statement.lineno
            if not first <= line.line <= last:
                continue
            inner = _place_in(statement, (*around, node), line, lines)
            others = (one for one in block if one is not statement)
            is_alone = not lines[first - 1][: statement.col_offset].strip() and not any(
                one.lineno <= last and first <= (one.end_lineno or one.lineno) for one in others
            )
            here = _Place(file=line.file, statement=statement, around=(*around, node), is_alone_on_its_lines=is_alone)
            return inner or here
    return None


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements right below a node; an `except` or a `case` counts as its statement's own block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(node, name, ()):
            yield part.body


def _called_in(statement: ast.stmt) -> tuple[str, bool] | None:
    """Which optimizer the statement steps, and whether with a closure; None where that is not plain to see."""
    match statement:
        case ast.Expr(value=call) | ast.Assign(value=call):
            pass
        case _:
            return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return None
    receiver, arguments = call.func.value, [*call.args, *(keyword.value for keyword in call.keywords)]
    if "scaler" in ast.unparse(receiver).lower():  # scaler.step(optimizer)
        return (ast.unparse(arguments[0]), False) if arguments and _is_name(arguments[0]) else None
    return (ast.unparse(receiver), bool(arguments)) if _is_name(receiver) else None


def _is_name(expression: ast.expr) -> bool:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return isinstance(expression, ast.Name)


def _is_body_of_closure(backward: _Place, stepping: _Place) -> bool:
    """Whether the pass runs each time that a function runs which is defined where the optimizer steps."""
    *outer, _ = backward.functions or [(0, 0)]
    return isinstance(backward.around[-1], FUNCTIONS) and outer == stepping.functions


def _start(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset


def _edits(insertions: Sequence[_Insertion], code: Code) -> Iterator[CodeEdit]:
    """One edit for each statement, with the calls for all the optimizers that belong there."""
    by_place: dict[tuple[str, int], list[_Insertion]] = {}
    for insertion in insertions:
        by_place.setdefault((insertion.place.file, insertion.place.statement.lineno), []).append(insertion)
    for first, *more in by_place.values():
        place = first.place
        calls = dict.fromkeys(one.call for one in (first, *more))
        lines = code.lines[place.file]
        line = place.statement.lineno if first.is_above else place.statement.end_lineno or place.statement.lineno
        old = lines[line - 1]
        start = lines[place.statement.lineno - 1]
        added = "\n".join(start[: len(start) - len(start.lstrip())] + call for call in calls)
        yield CodeEdit(
            file=place.file, line=line, old=old, new=f"{added}\n{old}" if first.is_above else f"{old}\n{added}"
        )
