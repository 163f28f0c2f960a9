"""What the calls of a module cost per step, forward and backward, and how much of that is not for its items."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from efprof.facts.time.call_paths import OPERATORS, CallPath, Kind
from efprof.facts.time.time_use import TimeUse

Parts = tuple[tuple[Kind, str], ...]
"""What tells a path from others: its lines and modules, from the outermost."""
TELLING: Final = ("line", "module")
ACCUMULATES: Final = "torch::autograd::AccumulateGrad"
"""The node that is given a parameter's gradient, which has the parameter's shape."""
ELEMENT_NS, FLOPS_PER_NS = 1.0, 32.0
"""What a number of an item's takes one core: 8 bytes read and written at 8 GB/s, and in products of matrices 16 fused
multiply-adds each ns, two fifths of an AVX2 core's peak at 2.5 GHz, which is what products of this size reach."""
MAX_LAUNCH_NS: Final = 150_000
"""An operator without weights that takes longer computes what its shapes do not tell: 30 to 140 us were measured for
small ones, under the profiler on busy cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """Milliseconds per steady step of a module called under one path, with all below it.

    The autograd engine's own time is shared out by what the nodes take that it calls. `fixed_ms` is what would be the
    same if the operators were given more items: Python, the engine, and what each operator takes beyond the work on
    its items, by their shapes. That is its launch, and on a CPU reading its weights and adding to their gradients.
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
    device_ns = sum(path.device_ns for path in forward + backward)
    work_ns = {} if device_ns else _work_ns(use, forward + backward)
    fixed_ns = sum(max(0.0, path.own_ns - work_ns.get(id(path), 0.0)) for path in forward + backward)
    return CallCost(
        forward_ms=_own_ns(forward) * to_ms,
        backward_ms=(in_nodes_ns + engine_ns) * to_ms,
        fixed_ms=(fixed_ns + engine_ns) * to_ms,
        device_ms=use.per_step_ms(device_ns),
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


def _work_ns(use: TimeUse, paths: Sequence[CallPath]) -> dict[int, float]:
    """By the identity of each path of operators: what their items take one core at least, as long as in the window.

    Of the operators inside one another the one that is given most tells how many numbers the items are.
    """
    window, found = use.window, {id(path): 0.0 for path in paths if path.kind == "operator"}
    trace, weights, has_weights = window.trace, _weights(use), set[int]()
    is_operator, end_ns, most = trace.is_of(*OPERATORS), 0, 0
    for event, path in sorted(window.paths.of_event.items()):
        if id(path) not in found or not is_operator[event]:
            continue
        if trace.start_ns[event] >= end_ns:
            end_ns, most = int(trace.end_ns[event]), 0
        shapes = trace.input_shapes(event)
        given, flops = sum(prod(one) for one in shapes if one and one not in weights), _flops(trace.text(event), shapes)
        found[id(path)] += (max(0, given - most) * ELEMENT_NS + flops / FLOPS_PER_NS) / use.scale
        most = max(given, most)
        if flops or not weights.isdisjoint(shapes):
            has_weights.add(id(path))
    unknown = [one for one in paths if id(one) not in has_weights and one.own_ns > one.count * MAX_LAUNCH_NS]
    return found | {id(path): float(path.own_ns) for path in unknown if path.kind == "operator"}


def _weights(use: TimeUse) -> set[tuple[int, ...]]:
    """The shapes of what gradients are kept of, and the same transposed."""
    trace = use.window.trace
    kept = [shape for event in trace.named(ACCUMULATES) for shape in trace.input_shapes(event)]
    return {one for shape in kept for one in (shape, shape[::-1])}


def _flops(name: str, shapes: Sequence[tuple[int, ...]]) -> float:
    """Of products; of a convolution as if it had an output for each input, padded and without strides."""
    match name.removeprefix("aten::"), [shape for shape in shapes if shape]:
        case (("mm" | "bmm"), [first, second, *_]):
            return 2.0 * prod(first) * second[-1]
        case (("addmm" | "baddbmm"), [_, first, second, *_]):
            return 2.0 * prod(first) * second[-1]
        case "convolution", [images, kernel, *_]:
            return 2.0 * prod(kernel) * images[0] * prod(images[2:])
        case "convolution_backward", [gradient, _, kernel, *_]:
            return 4.0 * prod(kernel) * gradient[0] * prod(gradient[2:])
    return 0.0
