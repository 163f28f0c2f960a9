"""Which statement of the user's source closes a reference cycle: the one that refers back to what was there before."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from efprof.artifacts.cycles import Cycle, CycleLink
from efprof.facts.cycle_sawtooth import CycleSawtooth
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.syntax import PlacedNode, placed_nodes
from efprof.model import SourceLine

Value = Literal["self", "method", "given", "error", "function", "named", "made"]
"""What is assigned: the object itself, a method of it, what the function was given, a caught error, a function that is
defined here, something else that has a name, or what a call makes just then."""

_LIKELIHOOD: tuple[Value, ...] = ("self", "method", "error", "function", "given", "named", "made")
"""The first refer back to what was there before; what is made just then hangs below, and the way back is elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosingStatement:
    """A statement that makes `link`; `value` is the expression it stores, None where it defines a function."""

    file: str
    line: int
    function: str
    link: CycleLink
    kind: Value
    value: ast.expr | None
    doubt: Literal[0, 1, 2]
    """Whether it stands in the class that the names belong to, in none, or in another one."""

    @property
    def site(self) -> str:
        """`file:line:function`."""
        return f"{self.file}:{self.line}:{self.function}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedCycle:
    """A cycle, the line to blame for it, and the statements that could close it, likeliest first."""

    cycle: Cycle
    blame: SourceLine
    statements: tuple[ClosingStatement, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleLines:
    """The cycles that a line of the user's was found for, most bytes first."""

    cycles: tuple[ClosedCycle, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where collections were not watched."""
        sources = run.get(Sources)
        found = (_closed(cycle, sources) for cycle in run.get(CycleSawtooth).garbage.cycles)
        return cls(cycles=tuple(closed for closed in found if closed is not None))


def _closed(cycle: Cycle, sources: Sources) -> ClosedCycle | None:
    statements = sorted(_statements(cycle, sources), key=_rank)
    site = statements[0].site if statements else next(_definitions(cycle, sources), None)
    if site is None:
        return None
    return ClosedCycle(cycle=cycle, blame=sources.line(site), statements=tuple(statements))


def _rank(statement: ClosingStatement) -> tuple[bool, int, int, str, int]:
    """Smaller is likelier; of two alike the later one closes the cycle."""
    is_other, likelihood = statement.doubt == 2, _LIKELIHOOD.index(statement.kind)
    return is_other, likelihood, statement.doubt, statement.file, -statement.line


def _statements(cycle: Cycle, sources: Sources) -> Iterator[ClosingStatement]:
    owners = [link.owner for link in cycle.links]
    for place, link in enumerate(cycle.links):
        held = owners[(place + 1) % len(owners)]
        for file in sources.files:
            tree = sources.tree(file)
            for placed in placed_nodes(tree) if tree and link.name else ():
                found = _of_attribute(placed, link, held) if link.kind == "attribute" else _of_variable(placed, link)
                if found is not None:
                    kind, value, doubt = found
                    assert isinstance(placed.node, ast.stmt)
                    yield ClosingStatement(
                        file=file,
                        line=placed.node.lineno,
                        function=placed.function,
                        link=link,
                        kind=kind,
                        value=value,
                        doubt=doubt,
                    )


_Found = tuple[Value, ast.expr | None, Literal[0, 1, 2]]
"""What is stored, and whether it is the link's by its class (0), may be (1), or is another's of the same name (2)."""


def _of_attribute(placed: PlacedNode, link: CycleLink, held: str) -> _Found | None:
    """`x.name = value` and what puts a value into `x.name`; a field of a dataclass is given by whoever makes one."""
    match placed.node:
        case (
            ast.Assign(targets=[ast.Attribute(value=receiver, attr=name)], value=value)
            | ast.AnnAssign(target=ast.Attribute(value=receiver, attr=name), value=ast.expr() as value)
            | ast.Assign(targets=[ast.Subscript(value=ast.Attribute(value=receiver, attr=name))], value=value)
            | ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Attribute(value=receiver, attr=name), attr="append" | "add"),
                    args=[value],
                )
            )
        ) if name == link.name:
            pass
        case ast.AnnAssign(target=ast.Name(id=name)) if name == link.name and _class_around(placed) == link.owner:
            return "given", None, 0
        case _:
            return None
    kind = _kind_of(value, placed, link)
    if kind is None:
        return None
    inside = placed.function.rpartition(".")[0]
    wanted = [link.owner] if isinstance(receiver, ast.Name) and receiver.id == "self" else []
    wanted += [held] if kind == "self" else []
    return kind, value, 1 if not wanted else 0 if set(wanted) == {inside} else 2


def _class_around(placed: PlacedNode) -> str | None:
    parent = placed.ancestors[-1]
    return placed.prefix.removesuffix(".") if isinstance(parent, ast.ClassDef) else None


def _of_variable(placed: PlacedNode, link: CycleLink) -> _Found | None:
    """`name = value` or `def name` in the function, or in the one around a closure."""
    if placed.function not in (link.owner, link.owner.rpartition(".<locals>.")[0]):
        return None
    match placed.node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == link.name:
            return ("function", None, 0) if link.kind == "closure" else None
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == link.name:
            kind: Value | None = "function" if isinstance(value, ast.Lambda) else _kind_of(value, placed, link)
            return None if kind is None else (kind, value, 0)
    return None


def _kind_of(value: ast.expr, placed: PlacedNode, link: CycleLink) -> Value | None:
    """None of what refers to nothing: a constant, an empty container."""
    match value:
        case ast.Constant() | ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Tuple(elts=[]):
            return None
        case ast.Name(id="self"):
            return "self"
        case ast.Attribute(value=ast.Name(id="self")) if link.through == "method":
            return "method"
        case ast.Name(id=name) if name in _caught_around(placed):
            return "error"
        case ast.Name(id=name) if name in _arguments_of(placed):
            return "given"
        case ast.Call() | ast.ListComp() | ast.DictComp():
            return "made"
    return "named"


def _caught_around(placed: PlacedNode) -> set[str]:
    return {node.name for node in placed.ancestors if isinstance(node, ast.ExceptHandler) and node.name}


def _arguments_of(placed: PlacedNode) -> set[str]:
    for node in reversed(placed.ancestors):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return set()


def _definitions(cycle: Cycle, sources: Sources) -> Iterator[str]:
    """Where the user's classes and functions of the cycle are defined."""
    for link in cycle.links:
        tree = sources.tree(link.file) if link.file else None
        for placed in placed_nodes(tree) if tree else ():
            match placed.node:
                case (
                    ast.ClassDef(name=name, lineno=line)
                    | ast.FunctionDef(name=name, lineno=line)
                    | ast.AsyncFunctionDef(name=name, lineno=line)
                ) if placed.qualified_name(name) == link.owner:
                    yield f"{link.file}:{line}:{placed.function}"
