"""Modules that one line calls several times before a backward pass, each time with one item: what a batch would do.

A call is told by its module (`Encoder_0`, the profiler's number of the instance), by the path of lines that leads to
it, and by the shapes that its first layer was given. Only calls that the user's line makes itself count, and only
those that are differentiated: evaluation, generation and what a library repeats are left out.
"""

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.source.loops import repeated_line
from efprof.facts.source.sources import COMPREHENSION, Sources
from efprof.facts.time.call_paths import MODULE, OPERATORS
from efprof.facts.time.path_tree import CallPath, Parts
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_windows import TraceWindow, TraceWindows
from efprof.model import SourceLine, ThinEvidence, frozen_dataclass

TELLING = ("line", "module")
"""What tells a path from others: its lines and modules."""
LAUNCH_NS = 100_000
"""What an operator takes at most that is not work on its items: 30 to 140 us were measured for small ones, under the
profiler on busy cores."""
RECURRENT = re.compile(r"^aten::(gru|lstm|rnn_tanh|rnn_relu)$")
"""Their second input is the state, [layers, batch, width] whichever way the input lies."""
LAYERS = re.compile(r"^aten::(conv[123]d|embedding|linear|matmul|(gru|lstm|rnn_tanh|rnn_relu)(_cell)?)$")
"""Operators whose input tells how many items a call was given."""
MIN_STEPS = 2
"""One step cannot tell what each step does from what one in a hundred does."""


@frozen_dataclass
class RepeatedCall:
    """A line that calls modules `num_calls` times each before each of `num_passes` backward passes of every step.

    `modules` come by what they cost; `layer` and `input_shape` are the first layer of the costliest and its input.
    `parts` tell the lines and modules that lead to the line; `loop` is the one around it, in the source text.
    `total_ms` is per steady step of all calls with all below them, forward and backward; the autograd engine's own time
    is shared out by what the nodes take that it calls. `fixed_ms` of it would be the same if the operators were given
    more items: Python, the engine, and the launch of each operator.
    """

    modules: tuple[str, ...]
    blame: SourceLine
    loop: SourceLine | None
    is_chained: bool
    """Whether a call needs what an earlier one gave."""
    parts: Parts
    num_calls: int
    num_passes: int
    layer: str
    input_shape: tuple[int, ...]
    total_ms: float
    fixed_ms: float

    def is_inside(self, other: "RepeatedCall") -> bool:
        """Whether a module of the other line leads to this one."""
        return any(self.parts[: len(other.parts) + 1] == (*other.parts, ("module", name)) for name in other.modules)


@frozen_dataclass
class RepeatedCalls:
    """What is called equally often, and more than once, before each backward pass; the costliest line first."""

    calls: tuple[RepeatedCall, ...]
    num_steps: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From all windows; raises NotRecorded where there is none, ThinEvidence where they tell too little."""
        windows = [window for window in run.get(TraceWindows).windows if not window.whole_ns]
        use, sources = run.get(TimeUse), run.get(Sources)
        num_steps = sum(len(window.steps) for window in windows)
        if num_steps < MIN_STEPS:
            raise ThinEvidence(f"The traces hold {num_steps} step, {MIN_STEPS} are needed; record a longer run.")
        if not any({"call_site", "shapes"} <= window.trace.sparse.keys() for window in windows):
            why = "The traces lack the exact line of each call, or shapes; record the training with 'efprof record'."
            raise ThinEvidence(why)
        counts = defaultdict[_Key, list[Counter[int]]](list)
        sites: dict[_Key, tuple[str, ...]] = {}
        for window in windows:
            for passes_of in _by_step(window, sites):
                for key, passes in passes_of.items():
                    counts[key].append(passes)
        kept = [key for key, passes in counts.items() if len(passes) == num_steps and _num_alike(passes) > 1]
        every = [(path, _parts_of(path)) for path in use.window.walk() if kept]
        alike = []
        for key in kept:
            passes, repeated = counts[key][0], repeated_line(sites[key], sources)
            total_ms, fixed_ms = _cost_ms(use, every, key.parts)
            alike.append(
                RepeatedCall(
                    modules=(key.parts[-1][1],),
                    blame=sources.line(sites[key][0]),
                    loop=repeated.loop if repeated else None,
                    is_chained=repeated is not None and repeated.is_chained,
                    parts=key.parts[:-1],
                    num_calls=next(iter(passes.values())),
                    num_passes=len(passes),
                    layer=key.layer,
                    input_shape=key.input_shape,
                    total_ms=total_ms,
                    fixed_ms=fixed_ms,
                )
            )
        return cls(calls=tuple(_by_line(alike)), num_steps=num_steps)


class _Key(NamedTuple):
    """What calls must have in common to be made at once."""

    parts: Parts
    layer: str
    input_shape: tuple[int, ...]


def _num_alike(steps: Sequence[Counter[int]]) -> int:
    """How many calls come before each backward pass of each step; 0 where they differ."""
    counts = {tuple(sorted(passes.values())) for passes in steps}
    each = {count for passes in counts for count in passes}
    return each.pop() if len(counts) == len(each) == 1 else 0


def _by_step(window: TraceWindow, lines: dict[_Key, tuple[str, ...]]) -> list[dict[_Key, Counter[int]]]:
    """Of each step, how many calls of modules with one item come before which backward pass; `lines` gets theirs.

    Only those made and differentiated in the user's own code.
    """
    trace, paths = window.trace, window.paths
    steps: list[dict[_Key, Counter[int]]] = [defaultdict(Counter) for _ in window.steps]
    layers = trace.is_of(*OPERATORS) & trace.matches(LAYERS) & (trace.argument("shapes") >= 0)
    differentiated = trace.is_of(*OPERATORS) & (trace.argument("sequence") >= 0)
    begins = [start for start, _ in window.steps]
    backward = [start for start, _, stage, _ in paths.stages if stage == "backward"]
    is_function = trace.is_of("python_function")
    for event in np.flatnonzero(is_function & (trace.argument("call_site") >= 0)).tolist():
        path = paths.of_event.get(event)
        if path is None or path.kind != "module" or path.stage != "forward" or not trace.text(event).startswith(MODULE):
            continue
        end_ns = int(trace.end_ns[event])  # a step may begin within its first call, whose hook tells of it
        step = bisect.bisect_left(begins, end_ns) - 1
        is_learned = _inside(trace, differentiated, event)
        given = _one_item(trace, _inside(trace, layers, event)) if is_learned else None
        if step >= 0 and end_ns <= window.steps[step][1] and given is not None:
            key = _Key(_parts_of(path), *given)
            steps[step][key][bisect.bisect_right(backward, end_ns)] += 1
            if key not in lines:
                lines[key] = _sites(window, is_function, event)
    return steps


def _inside(trace: Trace, chosen: Array, call: int) -> list[int]:
    """Of the chosen events those that began within the call, on its thread."""
    within = slice(call, int(np.searchsorted(trace.start_ns, trace.end_ns[call])))
    found = np.flatnonzero(chosen[within] & (trace.lane[within] == trace.lane[call])) + call
    return found.tolist()


def _one_item(trace: Trace, layers: list[int]) -> tuple[str, tuple[int, ...]] | None:
    """The first of these layers, and its input's shape; None where that is a batch."""
    recurrent = [layer for layer in layers if RECURRENT.match(trace.text(layer))]
    for layer in recurrent or layers:
        name, shapes = trace.text(layer), trace.input_shapes(layer)
        num_items = _num_items(name, shapes)
        if num_items is not None:
            return (name, shapes[name == "aten::embedding"]) if num_items == 1 else None
    return None


def _num_items(layer: str, shapes: Sequence[tuple[int, ...]]) -> int | None:
    """How many items a layer was given at once; None where its shapes do not tell a batch from a sequence."""
    first, second = (*shapes, (), ())[:2]
    if RECURRENT.match(layer):
        return second[1] if len(second) == 3 else None
    if layer == "aten::embedding":
        return second[0] if len(second) > 1 else None
    is_unbatched = len(first) == (len(second) - 1 if layer.startswith("aten::conv") else 1)
    return 1 if is_unbatched else first[0] if first else None


def _sites(window: TraceWindow, is_function: Array, call: int) -> tuple[str, ...]:
    """The line of a call, then of the call of its function, for as long as the user's code calls itself."""
    trace, outer = window.trace, window.paths.outer
    found: list[str] = []
    event: int | None = call
    while event is not None and (site := trace.argument_text("call_site", event)):
        found.append(site)
        event = outer.get(event)
        while event is not None and (not is_function[event] or COMPREHENSION.search(trace.text(event))):
            event = outer.get(event)
    return tuple(found)


def _by_line(calls: Sequence[RepeatedCall]) -> list[RepeatedCall]:
    """Modules that a line calls equally often are one: `head(encoder(text))`."""
    lines = defaultdict[tuple[Parts, int, int], list[RepeatedCall]](list)
    for call in sorted(calls, key=lambda call: (-call.total_ms, call.modules)):
        lines[call.parts, call.num_calls, call.num_passes].append(call)
    merged = [
        replace(
            same[0],
            modules=tuple(dict.fromkeys(name for call in same for name in call.modules)),
            total_ms=sum(call.total_ms for call in same),
            fixed_ms=sum(call.fixed_ms for call in same),
        )
        for same in lines.values()
    ]
    return sorted(merged, key=lambda call: -call.total_ms)


def _cost_ms(use: TimeUse, every: Sequence[tuple[CallPath, Parts]], parts: Parts) -> tuple[float, float]:
    """From the window that the run's times are from, scaled to a step outside windows, the recorder's time left out."""
    to_ms = use.step_ms / max(1, _own_ns([path for path, _ in every]))
    backward = [path for path, _ in every if path.stage == "backward"]
    called = [path for path, its in every if its[: len(parts)] == parts and path.stage in ("forward", "backward")]
    in_nodes_ns = _own_ns([path for path in backward if path.kind == "operator"])
    engine_ns = _own_ns(backward) - in_nodes_ns  # outside of the operators of any line, shared out in proportion
    engine_ns *= _own_ns([path for path in called if path.stage == "backward"]) / max(1, in_nodes_ns)
    on_device = any(path.device_ns for path in called)
    fixed_ns = sum(
        min(path.own_ns, path.count * LAUNCH_NS) if path.kind == "operator" and not on_device else path.own_ns
        for path in called
    )
    return (_own_ns(called) + engine_ns) * to_ms, (fixed_ns + engine_ns) * to_ms


def _parts_of(path: CallPath) -> Parts:
    """Its lines and modules: the line of a function that ran already when the window opened is not its first one."""
    return tuple((part.kind, part.text) for part in path.parts() if part.kind in TELLING)


def _own_ns(paths: Sequence[CallPath]) -> float:
    return sum(path.own_ns for path in paths)
