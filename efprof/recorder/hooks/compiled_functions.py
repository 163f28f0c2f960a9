"""Tells what a compiled function does, and enters its stage: the hooks that would tell are compiled away in it.

That of a backward pass is left: the compiler leaves the pass to Python. So where a whole step is compiled, what comes
before each pass is `forward` and what comes after the last one `optimizer`, with all else that was compiled with it.
"""

import weakref
from time import perf_counter_ns

import torch

from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.manual_updates import living_optimizers

Optimizer = weakref.ref[torch.optim.Optimizer]


class CompiledFunction:
    """What is known of one: nothing before its first call with gradients on."""

    __slots__ = ("is_forward", "is_known", "num_passes", "num_updates", "optimizers", "progress", "versions")

    def __init__(self) -> None:
        self.is_known = False
        self.is_forward = False
        self.optimizers: list[Optimizer] = []
        """Those it steps."""
        self.num_passes = 0
        """How many backward passes come before that, within the same call."""
        self.num_updates = 0
        """That had been seen when its call began."""
        self.progress: tuple[int, int] | None = None
        """Of the loop, when the call began that shows what it does."""
        self.versions: dict[Optimizer, int] = {}


class CompiledFunctions:
    """Enters `forward` for a function that returns what has a gradient, `optimizer` for one that steps one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: CompiledFunction | None = None
        """The outermost one of those that may hold a whole step."""
        self._num_passes = 0
        loop.backward_ended.append(self._backward_ended)

    def began(self, function: CompiledFunction) -> None:
        """It is called."""
        loop = self._loop
        function.num_updates, function.progress = loop.num_updates, None
        if loop.light.is_on or loop.thread.is_capturing:
            return
        if function.is_forward:
            loop.forward_began()
        elif function.num_passes:
            if torch.is_grad_enabled():
                self._run(function)
                self._go_forward()
        elif function.optimizers:
            if loop.step is not None and loop.step.has_gradients:
                self._go_on_with_update(function)
        elif not function.is_known and torch.is_grad_enabled():
            function.progress, function.versions = self._progress(), _versions()
            self._run(function)

    def ended(self, function: CompiledFunction) -> None:
        """It returned or raised."""
        if self._loop.light.is_on:
            self._running = None
        elif function.is_forward:
            self._loop.forward_ended()
        elif function.num_passes and function is not self._running:
            return  # without gradients, or within another one
        elif function is self._running:
            self._running = None
            self._loop.leave_function(perf_counter_ns())
            if function.num_passes and not self._num_passes:
                return  # an error came first
            function.num_passes = self._num_passes
        self._note_updates(function)

    def returned(self, function: CompiledFunction, result: object) -> None:
        """It returned this: find out what it does."""
        versions, function.versions = function.versions, {}
        if function.progress is None or self._loop.light.is_on or not torch.is_grad_enabled():
            return
        function.is_known = True
        function.is_forward = function.progress == self._progress() and _has_gradient(result)
        function.optimizers = [one for one, version in _versions().items() if versions.get(one, version) != version]
        if self._loop.num_updates > function.num_updates:
            function.num_passes = 0  # of a step whose end is seen, so is the rest
        self._note_updates(function)

    def _run(self, function: CompiledFunction) -> None:
        if self._running is None:
            self._running, self._num_passes = function, 0

    def _backward_ended(self) -> None:
        function = self._running
        if function is None or torch.compiler.is_compiling():  # the compiler takes gradients of what it traces
            return
        self._num_passes += 1
        if self._num_passes < function.num_passes:
            self._go_forward()
        elif self._num_passes == function.num_passes:
            self._go_on_with_update(function)

    def _go_forward(self) -> None:
        loop, entered = self._loop, perf_counter_ns()
        if loop.clock.stage is not None:
            return
        step = loop.step_to_train(entered)
        step.has_forward = True
        if step.sequence is None:
            step.sequence = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        loop.steps.note_memory(step, "pre_forward", entered)
        loop.clock.open(step, "forward", "function", entered)

    def _go_on_with_update(self, function: CompiledFunction) -> None:
        first = function.optimizers[0]() if function.optimizers else None
        if first is not None:
            self._loop.optimizer_entered(first)

    def _note_updates(self, function: CompiledFunction) -> None:
        """Its optimizers have stepped, unless that was seen: the compiler leaves some hooks to Python."""
        if self._loop.num_updates > function.num_updates:
            return
        for optimizer in filter(None, (one() for one in function.optimizers)):
            if not self._loop.is_in_optimizer:
                self._loop.optimizer_entered(optimizer)
            self._loop.optimizer_left(optimizer)

    def _progress(self) -> tuple[int, int]:
        """Changes with every backward pass and every step."""
        step = self._loop.step
        return self._loop.num_steps, 0 if step is None else step.num_backwards + len(step.stepped)


def _versions() -> dict[Optimizer, int]:
    """Of each optimizer's parameters, added up: it grows whenever one is written to."""
    return {
        weakref.ref(optimizer): sum(one._version for group in optimizer.param_groups for one in group["params"])
        for optimizer in living_optimizers()
    }


def _has_gradient(result: object) -> bool:
    """Whether a tensor in it was computed from what requires a gradient."""
    if isinstance(result, torch.Tensor):
        return result.grad_fn is not None
    if isinstance(result, dict):
        return any(map(_has_gradient, result.values()))
    return isinstance(result, list | tuple) and any(map(_has_gradient, result))
