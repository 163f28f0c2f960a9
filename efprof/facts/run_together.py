"""Whether two places of the user's code come in turn, again and again: by the text, what a loop around both reaches.

Calls are followed by their last names alone, and what anybody may call is taken to be called at any time: code counts
as run together which only may be.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from efprof.facts.syntax import MODULE, PlacedNode, called_name, name_of, placed_nodes

LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MAKERS = frozenset({"__init__", "__post_init__", "__new__"})
"""What a call of their class runs."""
PLAIN_DECORATORS = frozenset({"staticmethod", "classmethod", "abstractmethod", "override", "no_grad", "inference_mode"})
"""Any other may hand the function to somebody else."""
PLAIN_BASES = frozenset({"object", "ABC", "Protocol", "Generic", "NamedTuple", "Dataset"})
"""Classes of libraries that call no method by its name; of any other nobody knows which methods it calls."""
CALLED_BY_MODULE = frozenset({"forward", "train"})
"""The methods that `torch.nn.Module` calls by itself, next to those that begin with an underscore."""
HOOK = re.compile(r"on_|before_|after_|.*epoch")
"""What libraries call the methods that they run as training goes on; of others they may run none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loop:
    """A loop, the function it lies in, and the names of what it calls, directly or not."""

    file: str
    function: str
    node: ast.AST
    reached: frozenset[str]

    def holds(self, file: str, line: int, function: str) -> bool:
        """Whether a line of a function is run in its turns."""
        return _key(function) in self.reached or (
            (self.file, self.function) == (file, function) and _spans(self.node, line)
        )


class RunTogether:
    """The loops of all files, and the functions that may be called at any time."""

    def __init__(self, trees: Mapping[str, ast.AST]) -> None:
        nodes = {file: list(placed_nodes(tree)) for file, tree in trees.items()}
        everywhere = [placed for found in nodes.values() for placed in found]
        self._calls = _calls(everywhere)
        handed, by_libraries = _handed_over(everywhere), _library_names(everywhere)
        self._at_any_time = self._reached_from(handed | by_libraries)
        self._surely = self._reached_from(handed | {name for name in by_libraries if HOOK.match(name)})
        self._lambdas = [
            (file, placed.node) for file, found in nodes.items() for placed in found if _is_lambda(placed.node)
        ]
        self._loops = [
            self._loop(file, placed, found)
            for file, found in nodes.items()
            for placed in found
            if isinstance(placed.node, LOOPS)
        ]

    def may_alternate(self, some: tuple[str, int, str], other: tuple[str, int, str]) -> bool:
        """Whether one (file, line, function) may be run between two runs of the other, over and over.

        Where no loop is seen to run the other, somebody else does, and may run the one as well.
        """
        if self.is_free(*some):
            return True
        around = [loop for loop in self._loops if self.is_free(*other) or loop.holds(*other)]
        return not around or any(loop.holds(*some) for loop in around)

    def is_seen_to_alternate(self, some: tuple[str, int, str], other: tuple[str, int, str]) -> bool:
        """The same, where the text says who runs the one: a loop around both, who was given it, a library's hook."""
        if self._is_in_lambda(*some[:2]) or _key(some[2]) in self._surely:
            return True
        return any(loop.holds(*some) for loop in self._loops if self.is_free(*other) or loop.holds(*other))

    def is_free(self, file: str, line: int, function: str) -> bool:
        """Whether somebody may call it whom the text does not show."""
        return self._is_in_lambda(file, line) or _key(function) in self._at_any_time

    def is_run_by(self, loop: ast.AST, place: tuple[str, int, str]) -> bool:
        """Whether a line of a function is run in the turns of this loop."""
        return any(one.node is loop and one.holds(*place) for one in self._loops)

    def is_rarer(
        self, some: tuple[str, int, str], other: tuple[str, int, str], steps: Sequence[tuple[str, int, str]]
    ) -> bool:
        """Whether a loop that runs the steps runs the other in each of its turns, and the one only around it.

        `steps` are where backward is called; where no loop is seen to run it, any may be that of the steps.
        """
        of_steps = [loop for loop in self._loops if any(loop.holds(*step) for step in steps)]
        return any(loop.holds(*other) and not loop.holds(*some) for loop in of_steps or self._loops)

    def _is_in_lambda(self, file: str, line: int) -> bool:
        return any(name == file and _spans(node, line) for name, node in self._lambdas)

    def _reached_from(self, names: set[str]) -> frozenset[str]:
        reached, new = set(names), set(names)
        while new:
            new = {called for name in new for called in self._calls.get(name, ())} - reached
            reached |= new
        return frozenset(reached)

    def _loop(self, file: str, loop: PlacedNode, nodes: Sequence[PlacedNode]) -> _Loop:
        inside = (
            placed
            for placed in nodes
            if placed.function == loop.function and any(loop.node is one for one in placed.ancestors)
        )
        names = {name for placed in inside if (name := called_name(placed.node))}
        return _Loop(file=file, function=loop.function, node=loop.node, reached=self._reached_from(names))


def _key(function: str) -> str:
    """What a function is called by: its own name, or that of its class where a call of the class runs it."""
    *above, name = function.split(".")
    return above[-1] if name in MAKERS and above else name


def _calls(nodes: Sequence[PlacedNode]) -> dict[str, set[str]]:
    """By a function, the names of what it calls; making an object runs what its bases do."""
    found: dict[str, set[str]] = {}
    for placed in nodes:
        if placed.function != MODULE and (name := called_name(placed.node)):
            found.setdefault(_key(placed.function), set()).add(name)
        if isinstance(placed.node, ast.ClassDef):
            found.setdefault(placed.node.name, set()).update(filter(None, map(name_of, placed.node.bases)))
    return found


def _handed_over(nodes: Sequence[PlacedNode]) -> set[str]:
    """The functions that the text gives to somebody, or lets wait, who then runs them."""
    functions = _functions(nodes)
    names, made = {node.name for _, node in functions}, _made_names(nodes)
    waiting = {placed.function for placed in nodes if isinstance(placed.node, ast.Yield | ast.YieldFrom | ast.Await)}
    return (
        (names & _handed_names(nodes))
        | {called_name(placed.node) for placed in nodes if any(map(_is_lambda, placed.ancestors))}
        | {name for name in names if any(pattern.fullmatch(name) for pattern in made)}
        | {_key(function) for function in waiting if function != MODULE}
        | {node.name for _, node in functions if _is_decorated(node)}
    )


def _library_names(nodes: Sequence[PlacedNode]) -> set[str]:
    """The methods that Python or a class of a library may call."""
    bases = {
        placed.node.name: [name_of(base) or "" for base in placed.node.bases]
        for placed in nodes
        if isinstance(placed.node, ast.ClassDef)
    }
    return {node.name for placed, node in _functions(nodes) if _is_called_by_library(placed, node, bases)}


def _functions(nodes: Sequence[PlacedNode]) -> list[tuple[PlacedNode, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [(one, one.node) for one in nodes if isinstance(one.node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _handed_names(nodes: Sequence[PlacedNode]) -> set[str]:
    """Names that are read without a call, written as a text, or given another name."""
    found: set[str] = set()
    for placed in nodes:
        above = placed.ancestors[-1]
        match placed.node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                if not (isinstance(above, ast.Call) and above.func is placed.node):
                    found.add(name)
            case ast.Constant(value=str(text)):
                found.add(text)
            case ast.alias(name=name, asname=str()):
                found.add(name)
    return found


def _made_names(nodes: Sequence[PlacedNode]) -> list[re.Pattern[str]]:
    """What `getattr(callback, f"on_{event}_end")` may call."""
    return [
        re.compile(
            "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*" for part in text.values)
        )
        for placed in nodes
        if called_name(placed.node) == "getattr"
        for text in ast.walk(placed.node)
        if isinstance(text, ast.JoinedStr)
    ]


def _is_decorated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator may hand it to somebody else."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    return any(name_of(one) not in PLAIN_DECORATORS for one in decorators)


def _is_called_by_library(
    placed: PlacedNode, node: ast.FunctionDef | ast.AsyncFunctionDef, bases: Mapping[str, Sequence[str]]
) -> bool:
    """Whether it is a method that Python or a class of a library calls."""
    above = placed.ancestors[-1]
    if not isinstance(above, ast.ClassDef) or node.name in MAKERS:
        return False
    foreign = _foreign_bases(above.name, bases)
    is_of_module = node.name.startswith("_") or node.name in CALLED_BY_MODULE
    is_python = node.name.startswith("__") and node.name.endswith("__")
    return is_python or bool(foreign - {"Module"}) or ("Module" in foreign and is_of_module)


def _foreign_bases(name: str, bases: Mapping[str, Sequence[str]]) -> set[str]:
    """Those of a class that are not the user's own, and of which it is not known that they call nothing."""
    found, todo, seen = set[str](), [name], set[str]()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in bases:
            todo.extend(bases[one])
        elif one not in PLAIN_BASES:
            found.add(one)
    return found


def _is_lambda(node: ast.AST) -> bool:
    return isinstance(node, ast.Lambda)


def _spans(node: ast.AST, line: int) -> bool:
    assert isinstance(node, ast.stmt | ast.expr)
    return node.lineno <= line <= (node.end_lineno or node.lineno)
