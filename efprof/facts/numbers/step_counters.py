"""Whole numbers that are called steps and grow by more than one with each update: where they are raised and read."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from efprof.artifacts.events import StepCounter, events_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, name_of, placed_nodes
from efprof.model import SourceLine


class RaisedCounter(NamedTuple):
    """`raised` is the line that raises it, `readers` those that read it, `limits` what some of them compare it with."""

    counter: StepCounter
    raised: SourceLine
    readers: tuple[SourceLine, ...]
    limits: tuple[tuple[SourceLine, int], ...]


def raised_counters(run: Run) -> Iterator[RaisedCounter]:
    """Those whose raising line is plain to see: `step += 1` alone of its name."""
    sources = run.get(Sources)
    found = {event.name: event for event in events_of(run.rank_folder, StepCounter)}
    for event in found.values():
        name = event.name.removeprefix("self.")
        raised, readers, limits = [], [], []
        for file in sources.files:
            constants = _constants(sources.tree(file))
            for placed in placed_nodes(sources.tree(file)):
                line = sources.line(f"{file}:{getattr(placed.node, 'lineno', 0)}:{placed.function}")
                match placed.node:
                    case ast.AugAssign(target=target, op=ast.Add()) if name_of(target) == name:
                        raised.append(line)
                    case ast.Compare(left=left, comparators=[other]) if name_of(left) == name:
                        limit = _value(other, constants)
                        limits += [(line, limit)] if limit else []
                    case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()) if name_of(placed.node) == name:
                        readers.append(line)
        if len(raised) == 1:
            others = tuple(one for one in dict.fromkeys(readers) if one != raised[0])
            yield RaisedCounter(event, raised[0], others, tuple(dict.fromkeys(limits)))


def _constants(tree: ast.Module) -> dict[str, int]:
    """Names that the file gives a whole number, once."""
    given: dict[str, int | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and (name := name_of(node.targets[0])):
            given[name] = _value(node.value, {}) if name not in given else None
    return {name: value for name, value in given.items() if value}


def _value(node: ast.expr, constants: dict[str, int]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    return constants.get(name_of(node) or "")
