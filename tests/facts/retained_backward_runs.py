"""Runs whose backward keeps its graph, for the tests of what is made of them: two steps in a window, as recorded.

In each step three operations make a block each; backward runs from 5 ms to 13 ms (as `make_step` has it), and holds the
gradients of one and the next. The graph goes when the next step's forward pass has made its own: that is where the loss
is bound anew.
"""

from pathlib import Path
from typing import Any

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.events import BackwardCalls
from efprof.artifacts.steps import StepRecord
from efprof.facts.run import Run
from efprof.units import MIB
from tests.builders import START_NS, make_steps, write_run

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
NUM_STEPS, WINDOW_STEPS = 40, (5, 6)
BLOCK = 10 * MIB
GRADIENT, OUTPUT = 100, 200
"""Addresses: the blocks of a graph are at a step's number times ten."""


def calls(**fields: Any) -> BackwardCalls:
    """All of them keep a graph of three blocks, and none is run again."""
    defaults: dict[str, Any] = {
        "at_ns": START_NS, "step": NUM_STEPS, "site": BACKWARD, "num_calls": NUM_STEPS, "num_retained": NUM_STEPS,
        "num_watched": 20, "last_watched_step": 19, "num_released": 20, "num_released_later": 19,
        "kept_bytes": 3 * BLOCK,
    }  # fmt: skip
    return BackwardCalls(**(defaults | fields))


def run_of(
    folder: Path,
    *events: BackwardCalls,
    text: str = TRAIN,
    allocations: list[AllocationEvent] | None = None,
    steps: list[StepRecord] | None = None,
    **fields: Any,
) -> Run:
    """The run in which these calls were seen; without allocations there was no window."""
    windows = [sorted(allocations, key=lambda event: event.time_ns)] if allocations else []
    steps = make_steps(NUM_STEPS, backward_site=BACKWARD) if steps is None else steps
    return write_run(folder, steps=steps, sources={"train.py": text}, events=events, allocations=windows, **fields)


class Window:
    """Allocations of the window's steps; times are milliseconds from the step's start."""

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self.allocations: list[AllocationEvent] = []

    def forward(self, step: int) -> None:
        """Three operations, and a tensor of the program's own that no graph has."""
        for place in range(3):
            self.allocate(step, 1.2 + place, 10 * step + place, self.block)
        self.allocate(step, 4.3, OUTPUT + step, self.block)

    def backward(self, step: int) -> None:
        """Three gradients, each of which the next one needs."""
        for place in range(3):
            self.allocate(step, 5.6 + 2 * place, GRADIENT + place, self.block)
            if place:
                self.release(step, 6.6 + 2 * place, GRADIENT + place - 1)
        self.release(step, 11.9, GRADIENT + 2)

    def allocate(self, step: int, at_ms: float, address: int, num_bytes: int) -> None:
        """One allocation."""
        self._add(step, at_ms, address, num_bytes)

    def release(self, step: int, at_ms: float, *addresses: int) -> None:
        """Releases with no allocation between."""
        for place, address in enumerate(addresses):
            self._add(step, at_ms + place * 0.001, address, -self.block)

    def release_graph(self, step: int, at_ms: float, of_step: int) -> None:
        """All three blocks of a step."""
        self.release(step, at_ms, *(10 * of_step + place for place in range(3)))

    def _add(self, step: int, at_ms: float, address: int, num_bytes: int) -> None:
        self.allocations.append(
            AllocationEvent(
                time_ns=START_NS + round((1000 * step + at_ms) * 1e6), address=address, num_bytes=num_bytes,
                operation="aten::empty", stack=(FORWARD,), forward_stack=(), modules=(), is_backward=False,
            )
        )  # fmt: skip


def kept_into_next_step(block: int = BLOCK) -> list[AllocationEvent]:
    """Both graphs are kept, and the first is there until the second one is whole."""
    window = Window(block)
    first, second = WINDOW_STEPS
    window.forward(first)
    window.backward(first)
    window.forward(second)
    window.release(second, 4.4, OUTPUT + first)
    window.allocate(second, 4.6, 300, 4)
    window.release_graph(second, 4.7, of_step=first)
    window.backward(second)
    return window.allocations


def released_at_its_end() -> list[AllocationEvent]:
    """Each graph goes at the end of its step, after something else was allocated."""
    window = Window()
    for step in WINDOW_STEPS:
        window.forward(step)
        window.backward(step)
        window.allocate(step, 14.5, 300, 4)
        window.release_graph(step, 14.8, of_step=step)
        window.allocate(step, 14.85, 300, 4)
        window.release(step, 14.9, OUTPUT + step)
    return window.allocations
