"""The user's source code as it ran: from a recorded site to a SourceLine, the code around it, and its syntax."""

import ast
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple, Self

from efprof.artifacts.run_file import read_sources
from efprof.facts.run.run import Run
from efprof.model import Snippet, SourceFile, SourceLine, frozen_dataclass

CONTEXT_LINES = 3
"""Lines shown above and below the one that matters: enough to recognise a place, few enough for a phone."""
FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
"""How torch's profiler names the call of a Python function."""
SITE = re.compile(r"(.*):(\d+):(.*)", re.DOTALL)
COMPREHENSION = re.compile(r"<(listcomp|setcomp|dictcomp|genexpr)>")
"""Python 3.11 gives a comprehension a function of its own; people see the one it is written in."""

MODULE = "<module>"
"""What Python calls the code of a module that is in no function."""


@frozen_dataclass
class Sources:
    """The lines of every recorded file by its name."""

    files: dict[str, list[str]]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read what the recorder kept; a run without sources still has files and lines, only no text."""
        return cls(files=read_sources(run.rank_folder))

    def is_user_code(self, site: str) -> bool:
        """Whether the site lies in the user's own files, the only ones that are recorded."""
        return split_site(site)[0] in self.files

    def sites_of_frame(self, name: str) -> list[str]:
        """Where the user's function is that a call in a profiler's trace is named after; empty for a library's.

        The profiler leaves out the folder on `sys.path`, the recorder that of the repository.
        """
        frame = FRAME.fullmatch(name)
        return [
            f"{file}:{frame['line']}:{frame['function']}"
            for file in self.files
            if frame and (f"/{file}".endswith(f"/{frame['file']}") or frame["file"].endswith(f"/{file}"))
            if self._has(file, int(frame["line"]), frame["function"])
        ]

    def line(self, site: str) -> SourceLine:
        """The source line of a site (`file:line:function`); without text where the file was not recorded."""
        file, line, function = split_site(site)
        lines, function = self.files.get(file, []), self._qualified(file, line, function)
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        start = max((around.first for around in self._around(file, line)), default=1)
        above = lines[start - 1 : line - 1] if text else []
        ordinal = sum(other.strip() == text for other in above)  # in the innermost function
        return SourceLine(file=file, line=line, function=function, text=text, ordinal=ordinal)

    def first_with(self, text: str) -> SourceLine | None:
        """The first line that holds this text; None where there is none."""
        numbered = ((file, *one) for file, lines in self.files.items() for one in enumerate(lines, 1))
        return next((self.line(f"{file}:{number}:{MODULE}") for file, number, line in numbered if text in line), None)

    def snippet(self, blame: SourceLine) -> Snippet:
        lines = self.files.get(blame.file, [])
        first = max(1, blame.line - CONTEXT_LINES)
        return Snippet(
            title=str(blame),
            file=blame.file,
            first_line=first,
            lines=tuple(lines[first - 1 : blame.line + CONTEXT_LINES]),
            highlighted=blame.line,
        )

    def tree(self, file: str) -> ast.Module:
        """The syntax of a recorded file; empty where it is missing, or was written for another Python."""
        return self.file(file).tree

    def file(self, name: str) -> SourceFile:
        return SourceFile(name, self.files.get(name, ()))

    def _qualified(self, file: str, line: int, name: str) -> str:
        """`Trainer.step` for `step`: torch's profiler knows a function's own name only, or that of a comprehension."""
        if not self.tree(file).body or name == MODULE or ("." in name and not COMPREHENSION.search(name)):
            return name
        around = [function.name for function in self._around(file, line) if function.name]
        if COMPREHENSION.search(name):
            return around[-1] if around else MODULE
        return next((found for found in reversed(around) if found.rpartition(".")[2] == name), name)

    def _has(self, file: str, line: int, name: str) -> bool:
        """Whether a function of that name lies there: a library's file can have the name of the user's.

        Its first line is named, but of one that ran before the profiler the line that it was at.
        """
        if any((one.name or "").rpartition(".")[2] == name for one in self._around(file, line)):
            return True
        return line <= len(self.files[file]) if name.startswith("<") else not self.tree(file).body

    def _around(self, file: str, line: int) -> list["_Function"]:
        """The functions that the line lies in, an outer one before its inner ones."""
        return [function for function in _functions_of(self.tree(file)) if function.first <= line <= function.last]


def line_at(run: Run, site: str) -> SourceLine:
    """The source line of a recorded site."""
    return run.get(Sources).line(site)


def file_of(run: Run, blame: SourceLine) -> SourceFile:
    """The file that a line is of."""
    return run.get(Sources).file(blame.file)


class _Function(NamedTuple):
    """A function of a file: its qualified name, None of a lambda, and its first and last line."""

    name: str | None
    first: int
    last: int


def split_site(site: str) -> tuple[str, int, str]:
    """`file:line:function` taken apart; a file's name may hold colons, and a function's, as `<cell line: 5>`."""
    found = SITE.fullmatch(site)
    assert found is not None
    return found[1], int(found[2]), found[3]


@cache
def place_of(site: str) -> str:
    """`file:line` of a site: one line is one place, however its comprehensions and callers name their function."""
    file, line, _ = split_site(site)
    return f"{file}:{line}"


@cache
def functions_in(library: tuple[str, ...]) -> tuple[str, ...]:
    """`file:function` of each frame of a library: a recording has the line of a call, a trace that of the function."""
    return tuple(re.sub(r":\d+:(.*\.)?", ":", frame) for frame in library)


def definition_of(sources: Sources, file: str | None, owner: str | None) -> SourceLine | None:
    """Where a class or function of that qualified name is defined; None where it is not the user's."""
    for placed in placed_nodes(sources.tree(file)) if file else ():
        node = placed.node
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if placed.prefix + node.name == owner:
            return sources.line(f"{file}:{node.lineno}:{placed.function}")
    return None


@frozen_dataclass
class PlacedNode:
    """A node, the qualified name of the function it lies in, as Python spells it, and the names of its arguments.

    `prefix` is what Python puts before the name of a function or class that is defined here.
    """

    node: ast.AST
    function: str
    prefix: str
    arguments: frozenset[str]


def placed_nodes(tree: ast.AST) -> Iterator[PlacedNode]:
    """Every node below `tree`, a parent before its children."""
    return _below(tree, MODULE, "", frozenset())


def name_of(expression: ast.AST) -> str | None:
    """The last name of `history`, `self.history`, `history[key]`: what a holder of that name is called by."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner):
            return name_of(inner)
    return None


@lru_cache(maxsize=256)
def _functions_of(tree: ast.Module) -> list[_Function]:
    found = []
    for placed in placed_nodes(tree):
        node = placed.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            name = None if isinstance(node, ast.Lambda) else placed.prefix + node.name
            decorators = [] if isinstance(node, ast.Lambda) else [one.lineno for one in node.decorator_list]
            found.append(_Function(name, min([node.lineno, *decorators]), node.end_lineno or node.lineno))
    return found


def _below(node: ast.AST, function: str, prefix: str, arguments: frozenset[str]) -> Iterator[PlacedNode]:
    for child in ast.iter_child_nodes(node):
        yield PlacedNode(node=child, function=function, prefix=prefix, arguments=arguments)
        match child:
            case ast.FunctionDef(name=name, args=given) | ast.AsyncFunctionDef(name=name, args=given):
                names = frozenset(each.arg for each in ast.walk(given) if isinstance(each, ast.arg))
                yield from _below(child, prefix + name, f"{prefix}{name}.<locals>.", names)
            case ast.ClassDef(name=name):
                yield from _below(child, function, f"{prefix}{name}.", arguments)
            case _:
                yield from _below(child, function, prefix, arguments)
