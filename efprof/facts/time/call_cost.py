"""What the calls of a module cost per step, forward and backward, and how much of that no smaller input makes less."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from efprof.facts.time.call_paths import OPERATORS, CallPath, Kind
from efprof.facts.time.time_use import TimeUse

Parts = tuple[tuple[Kind, str], ...]
"""What tells a path from others: its lines and modules, from the outermost."""
TELLING: Final = ("line", "module")
VIEWS: Final = frozenset({"aten::as_strided", "aten::view"})
"""They compute nothing and call nothing: what they take is what any operator takes at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """Milliseconds per steady step of a module called under one path, with all below it.

    The autograd engine's own time is shared out by what the nodes take that it calls. `fixed_ms` is what Python, the
    engine and the launch of each operator take of it: it is the same whatever the operators are given.
    """

    forward_ms: float
    backward_ms: float
    fixed_ms: float
    device_ms: float

    @property
    def total_ms(self) -> float:
        return self.forward_ms + self.backward_ms

    def __add__(self, other: "CallCost") -> "CallCost":
        return CallCost(
            forward_ms=self.forward_ms + other.forward_ms,
            backward_ms=self.backward_ms + other.backward_ms,
            fixed_ms=self.fixed_ms + other.fixed_ms,
            device_ms=self.device_ms + other.device_ms,
        )


def call_cost(use: TimeUse, parts: Parts) -> CallCost:
    """From the window that the run's times are from, scaled to a step outside windows, the recorder's time left out."""
    everything = sum(path.own_ns for path in use.window.paths.root.walk())
    to_ms = use.step_ms / max(1, everything)
    forward, backward = _below(use, parts, "forward"), _below(use, parts, "backward")
    in_nodes_ns, engine_ns = _own_ns(backward), _engine_ns(use, backward)
    in_operators_ns = in_nodes_ns + _own_ns([path for path in forward if path.kind == "operator"])
    launch_ns = min(in_operators_ns, _num_operators(use, forward + backward) * _view_ns(use))
    python_ns = _own_ns([path for path in forward if path.kind != "operator"])
    return CallCost(
        forward_ms=_own_ns(forward) * to_ms,
        backward_ms=(in_nodes_ns + engine_ns) * to_ms,
        fixed_ms=(python_ns + engine_ns + launch_ns) * to_ms,
        device_ms=use.per_step_ms(sum(path.device_ns for path in forward + backward)),
    )


def parts_of(path: CallPath) -> Parts:
    """Its lines and modules: the line of a function that ran already when the window opened is not its first one."""
    return tuple((part.kind, part.text) for part in path.parts() if part.kind in TELLING)


def _below(use: TimeUse, parts: Parts, stage: str) -> list[CallPath]:
    """What has these lines and modules in a stage, and all below; nothing where they are not there."""
    begun = use.window.paths.root.below.get(("stage", stage, stage))
    found = _with_parts(begun, parts) if begun is not None else ()
    return [below for path in found for below in path.walk()]


def _with_parts(path: CallPath, parts: Parts) -> Iterator[CallPath]:
    if not parts:
        yield path
        return
    for below in path.below.values():
        if below.kind not in TELLING:
            yield from _with_parts(below, parts)
        elif (below.kind, below.text) == parts[0]:
            yield from _with_parts(below, parts[1:])


def _own_ns(paths: Sequence[CallPath]) -> int:
    return sum(path.own_ns for path in paths)


def _engine_ns(use: TimeUse, backward: Sequence[CallPath]) -> float:
    """What the backward pass takes outside of the operators of any line, in proportion."""
    stage = use.window.paths.root.below.get(("stage", "backward", "backward"))
    every = list(stage.walk()) if stage is not None else []
    in_nodes_ns = _own_ns([path for path in every if path.kind == "operator"])
    return (_own_ns(every) - in_nodes_ns) * _own_ns(backward) / max(1, in_nodes_ns)


def _num_operators(use: TimeUse, paths: Sequence[CallPath]) -> int:
    """Those inside others too: each is dispatched."""
    window, chosen = use.window, {id(path) for path in paths if path.kind == "operator"}
    is_operator = window.trace.is_of(*OPERATORS)
    return sum(1 for event, path in window.paths.of_event.items() if id(path) in chosen and is_operator[event])


def _view_ns(use: TimeUse) -> float:
    """What an operator takes that computes nothing; 0 where the window has none."""
    trace = use.window.trace
    codes = [code for code, text in enumerate(trace.texts) if text in VIEWS]
    lengths = trace.duration_ns[trace.is_of(*OPERATORS) & np.isin(trace.name_code, codes)].tolist()
    return statistics.median(lengths) if lengths else 0.0
