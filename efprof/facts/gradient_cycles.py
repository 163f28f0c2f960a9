"""Calls of backward that give a tensor of the step a gradient with a graph, which leads back to that tensor.

Tensor, gradient and graph then keep each other alive through C++, where Python's garbage collector sees nothing.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from efprof.facts.retained_backward_call import BACKWARD_NAMES, CREATE, is_true
from efprof.facts.run import Run
from efprof.facts.step_code import StepCode
from efprof.facts.step_values import StepValues
from efprof.facts.syntax import called_name, site_of

REQUIRES_GRADIENT, INPUTS = "requires_grad", "inputs"


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientCycle:
    """The call of backward at `site` and the leaf that gets a gradient: `tensor`, as the line `made_at` spells it."""

    site: str
    tensor: str
    made_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientCycles:
    """By the text alone: none where some line of the step takes a gradient away again, or more than one leaf gets one.

    What the steps do not make anew is no such leaf: a module that is frozen and thawed, a tensor that all of them use.
    """

    found: tuple[GradientCycle, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Never raises NotRecorded where there are steps; without sources nothing is found."""
        code = run.get(StepCode)
        in_step = [(file, placed) for file in code.trees for placed in code.nodes(file) if code.is_in_step(placed)]
        calls = [site_of(file, placed) for file, placed in in_step if _creates_graph(placed.node)]
        if not calls or any(_takes_gradient_away(placed.node) for _, placed in in_step):
            return cls(found=())
        values = StepValues(code)
        leaves: dict[str, str] = {}
        for file, placed in in_step:
            for leaf in _leaves_of(placed.node):
                if values.is_made_anew(file, placed.function, leaf):
                    leaves.setdefault(ast.unparse(leaf), site_of(file, placed))
        if len(leaves) != 1:
            return cls(found=())
        ((name, made_at),) = leaves.items()
        return cls(found=tuple(GradientCycle(site=site, tensor=name, made_at=made_at) for site in calls))


def _leaves_of(node: ast.AST) -> Iterator[ast.expr]:
    """The variables that a node makes require a gradient."""
    match node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="requires_grad_"), args=[] | [ast.Constant(value=True)]):
            yield tensor
        case ast.Assign(targets=[ast.Attribute(value=tensor, attr="requires_grad")], value=value) if is_true(value):
            yield tensor
        case ast.Assign(targets=[target], value=ast.Call(keywords=given)):
            if any(one.arg == REQUIRES_GRADIENT and is_true(one.value) for one in given):
                yield target


def _takes_gradient_away(node: ast.AST) -> bool:
    """`x.grad = None`, `del x.grad`, `x.grad.detach_()`."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets)
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="grad"), attr="detach_")):
            return True
    return False


def _creates_graph(node: ast.AST) -> bool:
    """With `inputs=`, only what that names gets a gradient."""
    match node:
        case ast.Call(keywords=given) if called_name(node) in BACKWARD_NAMES:
            is_created = any(one.arg == CREATE and is_true(one.value) for one in given)
            return is_created and all(one.arg != INPUTS for one in given)
    return False
