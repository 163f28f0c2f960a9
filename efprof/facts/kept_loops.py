"""Whether the steps go through a container that they make longer: more calls then mean no longer data."""

import ast
from dataclasses import dataclass
from typing import Self

from efprof.facts.growing_statements import growing_statements
from efprof.facts.host_growth_statements import keeping_statements
from efprof.facts.run import Run
from efprof.facts.step_code import StepCode
from efprof.facts.syntax import name_of


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptLoops:
    """The names of what loops of the step go through, and statements of the step keep more and more in."""

    names: tuple[str, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """By the text alone; raises NotRecorded where there are no steps."""
        code = run.get(StepCode)
        kept = {statement.site for statement in keeping_statements(code)}
        names = sorted(_looped_names(code)) if kept else []
        return cls(names=tuple(name for name in names if _is_kept(name, kept, code)))


def _looped_names(code: StepCode) -> set[str]:
    found: set[str | None] = set()
    for file in code.trees:
        for placed in code.nodes(file):
            match placed.node:
                case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) | ast.comprehension(iter=iterated) if (
                    code.is_in_step(placed)
                ):
                    found |= {
                        name_of(node) for node in ast.walk(iterated) if isinstance(node, ast.Name | ast.Attribute)
                    }
    return {name for name in found if name}


def _is_kept(name: str, kept: set[str], code: StepCode) -> bool:
    return any(
        statement.site in kept
        for file, tree in code.trees.items()
        for statement in growing_statements(tree, file, name)
    )
