"""Backward passes whose gradients no update used, and the call that cleared them."""

import ast
from collections.abc import Sequence
from typing import NamedTuple

from efprof.artifacts.events import DiscardedPasses, events_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, placed_nodes, split_site
from efprof.model import NotRecorded, SourceLine, called_name, nodes_on

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While)

Discarded = DiscardedPasses
"""Passes of one line, how many were cleared before an update, and before how many of the updates."""


def discarded_passes(run: Run) -> Sequence[Discarded]:
    """What was seen of each line whose pass an update followed; raises NotRecorded where none did in a full step."""
    latest = {event.site: event for event in events_of(run.rank_folder, DiscardedPasses)}
    if not latest:
        raise NotRecorded("events.jsonl tells of no backward pass and update in two steps recorded in full.")
    return list(latest.values())


def clearing_line(sources: Sources, seen: Discarded) -> SourceLine | None:
    """The call of `zero_grad` that runs with each pass: in the same loop, or the only one of the program.

    None under a condition that is the optimizer's step's as well. Returns None where several may be the one.
    """
    file, line, _ = split_site(seen.site)
    step_file, step_line, _ = split_site(seen.step_site or seen.site)
    every = [(name, node) for name in sources.files for node in placed_nodes(sources.tree(name))]
    calls = [
        _Call(name, placed.node.lineno, placed.function, nodes_on(sources.tree(name), placed.node.lineno))
        for name, placed in every
        if isinstance(placed.node, ast.Call) and called_name(placed.node) == "zero_grad"
    ]
    at_pass, at_step = nodes_on(sources.tree(file), line), nodes_on(sources.tree(step_file), step_line)
    calls = [call for call in calls if not any(one in at_step for one in call.conditions(at_pass))]
    near = [call for call in calls if _scopes(call.around) == _scopes(at_pass)]
    sure = [call for call in near if not call.conditions(at_pass)]
    last = [call for call in sure if call.line <= line][-1:] or sure[:1]
    found = next((some[0] for some in (last, near, calls) if len(some) == 1), None)
    return sources.line(f"{found.file}:{found.line}:{found.function}") if found is not None else None


class _Call(NamedTuple):
    """A call, and the syntax around it."""

    file: str
    line: int
    function: str
    around: Sequence[ast.AST]

    def conditions(self, others: Sequence[ast.AST]) -> list[ast.AST]:
        """Those that are none of another line's."""
        return [one for one in self.around if isinstance(one, ast.If) and one not in others]


def _scopes(around: Sequence[ast.AST]) -> list[ast.AST]:
    return [one for one in around if isinstance(one, SCOPES)]
