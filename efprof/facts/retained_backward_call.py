"""The call of backward at a recorded site, where its own text says that the graph is to be kept."""

import ast
from dataclasses import dataclass

from efprof.facts.sources import Sources, split_site
from efprof.facts.syntax import called_name

BACKWARD_NAMES = frozenset({"backward", "manual_backward"})
"""`Tensor.backward`, `torch.autograd.backward`, and what Accelerate and Lightning call theirs; all hand these on."""
RETAIN, CREATE = "retain_graph", "create_graph"


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainingCall:
    """A call of backward whose graph outlives it; `arguments` are those that say so, as they are named in its text."""

    site: str
    file: str
    line: int
    node: ast.Call
    arguments: tuple[str, ...]

    @property
    def creates_graph(self) -> bool:
        """Whether the gradients get a graph of their own."""
        return CREATE in self.arguments


def retaining_call(sources: Sources, site: str) -> RetainingCall | None:
    """The call at the site; None where its arguments are no literal `True`, or more than one call may be meant."""
    file, line, _ = split_site(site)
    calls = _backward_calls(sources.tree(file), line)
    if len(calls) != 1:
        return None
    given = {keyword.arg: keyword.value for keyword in calls[0].keywords}
    arguments = tuple(name for name in (RETAIN, CREATE) if is_true(given.get(name)))
    is_told_not_to = (
        RETAIN in given and RETAIN not in arguments
    )  # a variable, or False: whether it is kept is not known
    if not arguments or is_told_not_to:
        return None
    return RetainingCall(site=site, file=file, line=line, node=calls[0], arguments=arguments)


def graph_making_line(sources: Sources, file: str) -> int | None:
    """The first line of the file that calls `torch.autograd.grad(..., create_graph=True)`, which keeps its graph."""
    tree = sources.tree(file)
    lines = [
        node.lineno
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Call) and called_name(node) == "grad"
        if any(keyword.arg == CREATE and is_true(keyword.value) for keyword in node.keywords)
    ]
    return min(lines, default=None)


def is_true(value: ast.expr | None) -> bool:
    """Whether it is the literal `True`."""
    return isinstance(value, ast.Constant) and value.value is True


def _backward_calls(tree: ast.Module | None, line: int) -> list[ast.Call]:
    return [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
        if called_name(node) in BACKWARD_NAMES
    ]
