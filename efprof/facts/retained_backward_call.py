"""The call of backward at a recorded line that is told by a literal to keep its graph: what an edit may take out."""

import ast
from dataclasses import dataclass

from efprof.facts.sources import Sources, split_site
from efprof.facts.syntax import called_name

BACKWARD_NAMES = frozenset({"backward", "manual_backward"})
"""`Tensor.backward`, `torch.autograd.backward`, and what Accelerate and Lightning call theirs; all hand these on."""
KEEPING = frozenset({"retain_graph", "create_graph"})


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainingCall:
    """A call of backward, and its arguments that are a plain `True`."""

    file: str
    node: ast.Call
    arguments: tuple[str, ...]


def retaining_call(sources: Sources, site: str) -> RetainingCall | None:
    """The call at the site; None where its arguments are no plain `True`, or more than one call may be meant."""
    file, line, _ = split_site(site)
    tree = sources.tree(file)
    calls = [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
        if called_name(node) in BACKWARD_NAMES
    ]
    given = [one for one in calls[0].keywords if one.arg in KEEPING] if len(calls) == 1 else []
    if not given or not all(isinstance(one.value, ast.Constant) and one.value.value is True for one in given):
        return None
    return RetainingCall(file=file, node=calls[0], arguments=tuple(one.arg or "" for one in given))
