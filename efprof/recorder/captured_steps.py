"""Steps that were captured into a CUDA graph: replaying it is all that the host still sees of them.

Never run on a GPU so far: the machine this was written on has none.
"""

from time import perf_counter_ns
from typing import Any
from weakref import WeakSet

from torch.optim.optimizer import register_optimizer_step_post_hook

from efprof.recorder.loop import Loop


class CapturedSteps:
    """Notes which graphs hold an optimizer's step; replaying one of them ends a step."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._graphs: WeakSet[Any] = WeakSet()
        self._capturing: Any = None
        self._hook: Any = None

    def capture_began(self, graph: Any) -> None:
        """From here on operations are captured, not run."""
        self._loop.thread.pause()
        self._capturing = graph
        self._hook = register_optimizer_step_post_hook(lambda *_: self._note_step())

    def capture_ended(self) -> None:
        """They run again."""
        self._capturing = None
        if self._hook is not None:
            self._hook.remove()
        self._loop.thread.resume()

    def replayed(self, graph: Any) -> None:
        """The graph was launched: what it holds belongs to the open step, or makes one."""
        if graph in self._graphs and self._loop.is_ours:
            self._loop.replayed(id(graph), {id(each) for each in self._graphs}, perf_counter_ns())

    def _note_step(self) -> None:
        if self._capturing is not None:
            self._graphs.add(self._capturing)
