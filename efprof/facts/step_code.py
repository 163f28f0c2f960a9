"""Which code of the user's every step runs, by its text: the loop around backward, and what is called from within it.

Calls are followed by their names alone, so that code counts as run which only shares a name with what is.
"""

import ast
from collections.abc import Iterable, Mapping
from typing import Self

from efprof.artifacts.steps import read_steps
from efprof.facts.run import Run
from efprof.facts.sources import Sources, split_site
from efprof.facts.syntax import MODULE, PlacedNode, called_name, name_of, placed_nodes

LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class StepCode:
    """The nodes of all files, and which of them lie in the innermost loop that holds backward or calls what does."""

    def __init__(self, trees: Mapping[str, ast.AST], backward_sites: Iterable[tuple[str, int, str]]) -> None:
        """`backward_sites` are (file, line, function)."""
        self.trees = trees
        self._nodes = {file: list(placed_nodes(tree)) for file, tree in trees.items()}
        self._calls = [  # what is called is asked for many times, of all nodes few are calls
            (placed, name) for nodes in self._nodes.values() for placed in nodes if (name := called_name(placed.node))
        ]
        sites = list(backward_sites)
        carriers = self._carriers({function.rpartition(".")[2] for _, _, function in sites})
        self._loops = {id(loop) for file in trees for loop in self._step_loops(file, sites, carriers)}
        self._functions = self._called()

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Of all recorded files that are written for this Python; raises NotRecorded where there are no steps."""
        sources = run.get(Sources)
        sites = {record.backward_site for record in read_steps(run.rank_folder)[0] if record.backward_site}
        trees = {file: tree for file in sources.files if (tree := sources.tree(file)) is not None}
        return cls(trees, map(split_site, sorted(sites)))

    def nodes(self, file: str) -> list[PlacedNode]:
        """Every node of a file, a parent before its children."""
        return self._nodes.get(file, [])

    def is_in_step(self, placed: PlacedNode) -> bool:
        """Whether each step runs it."""
        return self._is_in_loop(placed) or placed.function.rpartition(".")[2] in self._functions

    def _carriers(self, names: set[str]) -> set[str]:
        """The names of functions that run backward, or call one that does; none is called `<module>`."""
        names -= {MODULE}
        while True:
            callers = {placed.function.rpartition(".")[2] for placed, name in self._calls if name in names} - {MODULE}
            if callers <= names:
                return names
            names |= callers

    def _step_loops(self, file: str, sites: list[tuple[str, int, str]], carriers: set[str]) -> Iterable[ast.AST]:
        lines = {line for name, line, _ in sites if name == file}
        for placed in self.nodes(file):
            node = placed.node
            is_backward = isinstance(node, ast.stmt) and not isinstance(node, LOOPS) and node.lineno in lines
            if is_backward or called_name(node) in carriers:
                around = [one for one in placed.ancestors if isinstance(one, (*LOOPS, *FUNCTIONS))]
                if around and isinstance(around[-1], LOOPS):
                    yield around[-1]

    def _called(self) -> set[str]:
        """The names of what the loops call, and of what that calls; no name leads from `model(x)` to its `forward`."""
        names = {"forward"} if self._loops else set()
        callable_names = self._names_of_callables()
        while True:
            called = {
                name
                for placed, name in self._calls
                if placed.function.rpartition(".")[2] in names or self._is_in_loop(placed)
            }
            if called & callable_names:
                called.add("__call__")
            if called <= names:
                return names
            names |= called

    def _names_of_callables(self) -> set[str]:
        """The variables and attributes that are given an object of a class with a `__call__` of its own."""
        nodes = [placed.node for nodes in self._nodes.values() for placed in nodes]
        classes = {
            node.name
            for node in nodes
            if isinstance(node, ast.ClassDef)
            and any(isinstance(one, ast.FunctionDef) and one.name == "__call__" for one in node.body)
        }
        return {
            name
            for node in nodes
            if isinstance(node, ast.Assign) and classes and called_name(node.value) in classes
            for name in map(name_of, node.targets)
            if name is not None
        }

    def _is_in_loop(self, placed: PlacedNode) -> bool:
        return any(id(above) in self._loops for above in placed.ancestors)
