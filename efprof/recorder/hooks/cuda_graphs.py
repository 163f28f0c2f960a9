"""Steps that were captured into a CUDA graph: replaying it is all that the host still sees of them."""

import functools
from time import perf_counter_ns
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from efprof.recorder.hooks.patching import Undo, call_after, replace
from efprof.recorder.hooks.torch_versions import capture_ending
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.shell import Guard


def watch_captures(loop: Loop, guard: Guard) -> list[Undo]:
    """Look away while a CUDA graph is captured, and see a step where a graph that holds one is replayed."""
    kind, stepping = torch.cuda.CUDAGraph, CapturedSteps(loop)
    paused = guard(stepping.capture_began)
    resumed = guard(stepping.capture_ended)
    ending = capture_ending(kind)
    begin, end = kind.capture_begin, getattr(kind, ending)

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        paused(self)
        try:
            begin(self, *args, **kwargs)
        except BaseException:  # as where one is being captured already
            resumed(self)
            raise

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        finally:
            resumed(self)

    return [
        replace(kind, "capture_begin", capture_begin),
        replace(kind, ending, capture_end),
        call_after(kind, "replay", guard(stepping.replayed)),
    ]


class CapturedSteps:
    """Notes which graphs hold an optimizer's step; replaying one of them ends a step."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._graphs: WeakSet[Any] = WeakSet()
        self._capturing: list[Any] = []
        """Graphs into which operations go now; the last one began within the others' capture."""
        self._hook: Any = None

    def capture_began(self, graph: Any) -> None:
        self._loop.thread.has_captured = True
        if not self._capturing:
            self._loop.thread.pause()
            self._hook = register_optimizer_step_post_hook(lambda *_: self._graphs.update(self._capturing[-1:]))
        self._capturing.append(graph)

    def capture_ended(self, graph: Any) -> None:
        """They run again, once no capture goes on; this one may not have begun at all."""
        if graph not in self._capturing:
            return
        self._capturing.remove(graph)
        if not self._capturing:
            self._hook.remove()
            self._loop.thread.resume()

    def replayed(self, graph: Any) -> None:
        """The graph was launched: if it holds a whole update, that ends a step, whose stages cannot be told apart.

        It shares its step with other such graphs, but with no optimizer that stepped by itself.
        """
        loop, steps, entered = self._loop, self._loop.steps, perf_counter_ns()
        if graph not in self._graphs or not loop.thread.is_training_thread:
            return
        loop.num_updates += 1
        if loop.light.is_on:
            loop.light.updated(id(graph))
            return
        if steps.open is not None and not set(map(id, self._graphs)).issuperset(steps.open.stepped):
            steps.finish(steps.open, entered)
        step = steps.step_for_update(id(graph), entered)
        if step.is_light:
            loop.switch_to_light(step)
            loop.light.updated(id(graph))
            return
        step.num_backwards += 1
        steps.updated(step, id(graph), entered)
