"""Tells what a compiled function does, and enters its stage: the hooks that would tell are compiled away in it."""

import weakref

import torch

from efprof.recorder.living_optimizers import living_optimizers
from efprof.recorder.loop import Loop
from efprof.recorder.pattern import FORWARD, FORWARDED, OTHER
from efprof.recorder.sprint import Sprint

Optimizer = weakref.ref[torch.optim.Optimizer]


class CompiledFunction:
    """What is known of one: nothing before its first call with gradients on."""

    __slots__ = ("is_forward", "is_known", "optimizers", "progress", "versions")

    def __init__(self) -> None:
        self.is_known = False
        self.is_forward = False
        self.optimizers: list[Optimizer] = []
        """Those it steps."""
        self.progress: tuple[int, int] = (0, 0)
        self.versions: dict[Optimizer, int] = {}


class CompiledFunctions:
    """Enters `forward` for a function that returns what has a gradient, `optimizer` for one that steps one."""

    def __init__(self, loop: Loop, sprint: Sprint) -> None:
        self._loop = loop
        self._sprint = sprint

    def began(self, function: CompiledFunction) -> None:
        """It is called."""
        loop = self._loop
        if function.is_forward:
            if not self._sprint.watch.mark(FORWARD if torch.is_grad_enabled() else OTHER):
                loop.forward_began()
        elif function.optimizers:
            self._sprint.watch.mark(OTHER)
            first = function.optimizers[0]()
            if first is not None and loop.step is not None and loop.step.has_gradients:
                loop.optimizer_entered(first)
        elif not function.is_known and torch.is_grad_enabled():
            loop.leave_sprint()  # in which nobody would know what happens meanwhile
            function.progress, function.versions = self._progress(), _versions()

    def ended(self, function: CompiledFunction) -> None:
        """It returned or raised."""
        if function.is_forward and not self._sprint.watch.mark(FORWARDED):
            self._loop.forward_ended()
        for optimizer in function.optimizers:
            self._note_update(optimizer())

    def returned(self, function: CompiledFunction, result: object) -> None:
        """It returned this: find out what it does."""
        versions, function.versions = function.versions, {}
        if not torch.is_grad_enabled():
            return
        function.is_known = True
        function.is_forward = function.progress == self._progress() and _has_gradient(result)
        function.optimizers = [one for one, version in _versions().items() if versions.get(one, version) != version]
        for optimizer in function.optimizers:
            self._note_update(optimizer())

    def _note_update(self, optimizer: torch.optim.Optimizer | None) -> None:
        """It has stepped, unless that was seen: the compiler leaves some hooks to Python."""
        self._loop.leave_sprint()  # where the function made whole steps, one may have begun
        step = self._loop.step
        if optimizer is None or (step is not None and id(optimizer) in step.stepped):
            return
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
