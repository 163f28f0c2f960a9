"""Calls of backward that give a tensor of the step a gradient with a graph, which leads back to that tensor.

Tensor, gradient and graph then keep each other alive through C++, where Python's garbage collector sees nothing.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import read_steps
from efprof.facts.retained_backward_call import BACKWARD_NAMES, CREATE, called, is_true
from efprof.facts.run import Run
from efprof.facts.sources import Sources, split_site
from efprof.facts.step_code import StepCode
from efprof.facts.syntax import PlacedNode

REQUIRES_GRADIENT = "requires_grad"


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientCycle:
    """The call of backward at `site` and the leaf that gets a gradient: `tensor`, as the line `made_at` spells it."""

    site: str
    tensor: str
    made_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientCycles:
    """By the text alone: none where some line of the step takes a gradient away again."""

    found: tuple[GradientCycle, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Never raises NotRecorded where there are steps; without sources nothing is found."""
        sources = run.get(Sources)
        sites = Counter(record.backward_site for record in read_steps(run.rank_folder)[0] if record.backward_site)
        trees = {file: tree for file in sources.files if (tree := sources.tree(file)) is not None}
        code = StepCode(trees, [split_site(site) for site in sites])
        in_step = [(file, placed) for file in trees for placed in code.nodes(file) if code.is_in_step(placed)]
        leaves = [(name, _site(file, placed)) for file, placed in in_step for name in _leaves_of(placed.node)]
        if not leaves or any(_takes_gradient_away(placed.node) for _, placed in in_step):
            return cls(found=())
        name, made_at = leaves[0]
        calls = [_site(file, placed) for file, placed in in_step if _creates_graph(placed.node)]
        return cls(found=tuple(GradientCycle(site=site, tensor=name, made_at=made_at) for site in calls))


def _leaves_of(node: ast.AST) -> Iterator[str]:
    """The names that a node makes require a gradient."""
    match node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="requires_grad_"), args=[] | [ast.Constant(value=True)]):
            yield ast.unparse(tensor)
        case ast.Assign(targets=[ast.Attribute(value=tensor, attr="requires_grad")], value=value) if is_true(value):
            yield ast.unparse(tensor)
        case ast.Assign(targets=[target], value=ast.Call(keywords=given)):
            if any(one.arg == REQUIRES_GRADIENT and is_true(one.value) for one in given):
                yield ast.unparse(target)


def _takes_gradient_away(node: ast.AST) -> bool:
    """`x.grad = None`, `del x.grad`, `x.grad.detach_()`."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets)
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="grad"), attr="detach_")):
            return True
    return False


def _creates_graph(node: ast.AST) -> bool:
    match node:
        case ast.Call(keywords=given) if called(node) in BACKWARD_NAMES:
            return any(one.arg == CREATE and is_true(one.value) for one in given)
    return False


def _site(file: str, placed: PlacedNode) -> str:
    assert isinstance(placed.node, ast.expr | ast.stmt)
    return f"{file}:{placed.node.lineno}:{placed.function}"
