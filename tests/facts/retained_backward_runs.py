"""Runs whose backward keeps its graph, for the tests of what is made of them: two steps in a window, as recorded.

In each step three operations make a block each, with sequence numbers of their own; backward runs their nodes the
other way round, from 5 ms to 11 ms, 2 ms each, and holds the gradients of one and the next. The graph goes when the
next step's forward pass has made its own: that is where the loss is bound anew.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.steps import StageSpan, StepRecord
from efprof.facts.run import Run
from efprof.units import MIB
from tests.builders import START_NS, make_step, trace_event, write_run

CALL = "loss.backward(retain_graph=True)"
TRAIN = f"""\
def train(model, optimizer):
    for batch in loader:
        output = model(batch)
        loss = output.mean()
        optimizer.zero_grad()
        {CALL}
        optimizer.step()
"""
FORWARD, BACKWARD = "train.py:3:train", "train.py:6:train"
WINDOW_STEPS = (5, 6)
BLOCK = 10 * MIB
GRADIENT, OUTPUT = 100, 200
"""Addresses: the blocks of a graph are at a step's number times ten."""


class Recording:
    """Events of the window's steps; times are milliseconds from the step's start."""

    def __init__(self, *, operation: str = "aten::gelu", block: int = BLOCK) -> None:
        self.operation, self.block = operation, block
        self.allocations: list[AllocationEvent] = []
        self.trace: list[dict[str, Any]] = []

    def sequence(self, step: int) -> int:
        """Of the step's first operation."""
        return 1000 + 100 * step

    def forward(self, step: int) -> None:
        """Three operations, and a tensor of the program's own that no node belongs to."""
        for place in range(3):
            at_ms = 1.1 + place
            self.operate(step, at_ms, self.sequence(step) + place, self.operation)
            self.allocate(step, at_ms + 0.1, 10 * step + place, self.block)
        self.allocate(step, 4.3, OUTPUT + step, self.block)

    def operate(self, step: int, at_ms: float, sequence: int, name: str) -> None:
        """A forward operation of 0.5 ms."""
        self._add(step, name, at_ms, 0.5, **{"Sequence number": sequence, "Fwd thread id": 0})

    def backward(
        self, step: int, sequences: Sequence[int], *, at_ms: float = 5.0, site: str = BACKWARD, lasts_ms: float = 7.0
    ) -> None:
        """A call that runs these nodes, each of 2 ms, each with a gradient that the next one needs."""
        name = "torch/_tensor.py(566): backward"
        self._add(step, name, at_ms, lasts_ms, category="python_function", call_site=site)
        for place, sequence in enumerate(sequences):
            start_ms = at_ms + 0.1 + 2 * place
            self.node(step, start_ms, sequence)
            self.allocate(step, start_ms + 0.5, GRADIENT + place, self.block, is_backward=True)
            if place:
                self.release(step, start_ms + 1.5, GRADIENT + place - 1)
        self.release(step, at_ms + 0.1 + 2 * len(sequences) - 0.3, GRADIENT + len(sequences) - 1)

    def node(self, step: int, at_ms: float, sequence: int | None) -> None:
        """A run of 2 ms; None is one that adds to a parameter's gradient."""
        known = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": 1}
        self._add(step, "autograd::engine::evaluate_function: GeluBackward0", at_ms, 1.9, **known)

    def allocate(self, step: int, at_ms: float, address: int, num_bytes: int, *, is_backward: bool = False) -> None:
        """One allocation."""
        stack = () if is_backward else (FORWARD,)
        self._allocation(step, at_ms, address, num_bytes, stack=stack, is_backward=is_backward)

    def release(self, step: int, at_ms: float, *addresses: int) -> None:
        """Releases with no allocation between."""
        for place, address in enumerate(addresses):
            self._allocation(step, at_ms + place * 0.001, address, -self.block)

    def release_graph(self, step: int, at_ms: float, of_step: int) -> None:
        """All three blocks of a step."""
        self.release(step, at_ms, *(10 * of_step + place for place in range(3)))

    def run(self, folder: Path, *, text: str = TRAIN, steps: Sequence[StepRecord] | None = None, **fields: Any) -> Run:
        """The run that holds them; given fields replace those of write_run."""
        filled: dict[str, Any] = {
            "steps": self.steps() if steps is None else steps,
            "sources": {"train.py": text},
            "traces": [self.trace],
            "allocations": [sorted(self.allocations, key=lambda event: event.time_ns)],
        }
        return write_run(folder, **(filled | fields))

    def steps(self) -> list[StepRecord]:
        """Forty, all alike but for the window."""
        steps = [make_step(number, backward_site=BACKWARD) for number in range(40)]
        for number in WINDOW_STEPS:
            steps[number].window, steps[number].sequence = "trace-1", self.sequence(number)
        return steps

    def _add(self, step: int, name: str, at_ms: float, for_ms: float, **fields: Any) -> None:
        fields = {"category": "cpu_op"} | fields
        self.trace.append(trace_event(name, 1000 * step + at_ms, for_ms, **fields))

    def _allocation(
        self,
        step: int,
        at_ms: float,
        address: int,
        num_bytes: int,
        *,
        stack: tuple[str, ...] = (),
        is_backward: bool = False,
    ) -> None:
        self.allocations.append(
            AllocationEvent(
                time_ns=START_NS + round((1000 * step + at_ms) * 1e6),
                address=address,
                num_bytes=num_bytes,
                operation="aten::empty",
                stack=stack,
                forward_stack=(),
                modules=(),
                is_backward=is_backward,
            )
        )


def needless(**fields: Any) -> Recording:
    """Both graphs are kept, and the first is there until the second one is whole."""
    recording = Recording(**fields)
    for step in WINDOW_STEPS:
        recording.forward(step)
        if step == WINDOW_STEPS[1]:
            recording.release(step, 4.4, OUTPUT + WINDOW_STEPS[0])
            recording.allocate(step, 4.6, 300, 4)
            recording.release_graph(step, 4.7, of_step=WINDOW_STEPS[0])
        recording.backward(step, own_nodes(recording, step))
    return recording


def own_nodes(recording: Recording, step: int) -> list[int]:
    """The step's nodes in the order that backward runs them."""
    return [recording.sequence(step) + place for place in (2, 1, 0)]


def with_backwards(steps: Sequence[StepRecord], number: int, count: int) -> list[StepRecord]:
    """The steps, one of them with so many passes of backward."""
    changed = list(steps)
    spans = [span for span in changed[number].spans if span.stage != "backward"]
    changed[number].spans = [*spans, *(StageSpan("backward", 5000.0 + place, 5001.0 + place) for place in range(count))]
    return changed
