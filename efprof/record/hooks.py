"""Puts the loop's entry points into torch, from outside, and takes them out again."""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.record.loop import Loop, OpenStep
from efprof.record.shell import Shell
from efprof.record.sites import Sites

Undo = Callable[[], None]

STEPS_TO_LEARN = 2
"""A loop shows all its outermost modules within a step; the second one confirms it."""


def replace(owner: Any, name: str, new: Any) -> Undo:
    """Set an attribute of a class or module; the result puts the old one back."""
    had_own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, new)

    def undo() -> None:
        if had_own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)

    return undo


def watch_loaders(loop: Loop, shell: Shell) -> list[Undo]:
    """Enter the stage `data` whenever a DataLoader starts or is asked for a batch."""
    began = shell.guarded("loop", loop.fetch_began)
    ended = shell.guarded("loop", loop.fetch_ended)
    started = shell.guarded("loop", loop.loader_started)
    exhausted = shell.guarded("loop", loop.data_ended)
    start, advance = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    @functools.wraps(start)
    def iterate(self: Any) -> Any:
        began(getattr(self, "_efprof_number", None))
        try:
            iterator = start(self)
        finally:
            started()
        iterator.__dict__["_efprof_number"] = getattr(self, "_efprof_number", None)
        return iterator

    @functools.wraps(advance)
    def fetch(self: Any) -> Any:
        began(getattr(self, "_efprof_number", None))
        try:
            batch = advance(self)
        except BaseException:
            exhausted()
            raise
        ended(batch)
        return batch

    return [replace(DataLoader, "__iter__", iterate), replace(_BaseDataLoaderIter, "__next__", fetch)]


def watch_backward(loop: Loop, shell: Shell, sites: Sites) -> list[Undo]:
    """Enter the stage `backward` at `torch.autograd.backward`, which `Tensor.backward` calls too."""

    def enter(tensors: Any, caller: FrameType) -> None:
        if loop.is_ours:
            loop.backward_entered(tensors, sites.of_caller(caller))

    entered = shell.guarded("loop", enter)
    left = shell.guarded("loop", loop.backward_left)
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        entered(tensors, sys._getframe(1))
        try:
            original(tensors, *args, **kwargs)
        finally:
            left()

    return [replace(torch.autograd, "backward", backward)]


def watch_optimizers(loop: Loop, shell: Shell) -> list[Undo]:
    """Enter the stage `optimizer` by torch's own hooks for every optimizer."""
    entered = shell.guarded("loop", loop.optimizer_entered)
    left = shell.guarded("loop", loop.optimizer_left)
    before = register_optimizer_step_pre_hook(lambda optimizer, *_: entered(optimizer))
    after = register_optimizer_step_post_hook(lambda optimizer, *_: left(optimizer))
    return [before.remove, after.remove]


class ForwardWatch:
    """Enters the stage `forward` at the outermost module call, at no cost to the modules inside.

    A hook on every module call costs 1.6 us each (measured), so the hooks for all modules stay only until they
    have shown which classes are outermost; from then on those classes' own `__call__` is replaced. Not a hook
    on the instance: that would be pickled with the user's model. A step without a forward pass (another model
    took over) starts the learning again.
    """

    def __init__(self, loop: Loop, shell: Shell) -> None:
        self._began = shell.guarded("loop", loop.forward_began)
        self._ended = shell.guarded("loop", loop.forward_ended)
        self._loop = loop
        self._learning: list[Undo] = []
        self._depth = 0
        self._left_to_learn = 0
        self._outermost: dict[type[torch.nn.Module], Undo | None] = {}
        loop.step_ended.append(shell.guarded("loop", self._after_step))
        self._learn()

    def remove(self) -> None:
        """Take every hook out."""
        self._stop_learning()
        for undo in self._outermost.values():
            if undo is not None:
                undo()
        self._outermost.clear()

    def _learn(self) -> None:
        if not self._learning:
            before = register_module_forward_pre_hook(self._before_any)
            after = register_module_forward_hook(self._after_any, always_call=True)
            self._learning = [before.remove, after.remove]
        self._left_to_learn = STEPS_TO_LEARN

    def _stop_learning(self) -> None:
        for undo in self._learning:
            undo()
        self._learning = []
        self._depth = 0

    def _before_any(self, module: torch.nn.Module, _: Any) -> None:
        if not self._loop.is_ours:
            return
        if self._depth == 0 and type(module) not in self._outermost:
            self._outermost[type(module)] = None
        self._depth += 1
        self._began()

    def _after_any(self, *_: Any) -> None:
        if self._loop.is_ours:
            self._depth = max(0, self._depth - 1)
            self._ended()

    def _after_step(self, step: OpenStep, _: object) -> None:
        if step.num_backwards and not step.has_forward:
            self._learn()
        elif self._learning:
            self._left_to_learn -= 1
            if self._left_to_learn == 0 and self._depth == 0:
                self._stop_learning()
                self._watch_outermost()

    def _watch_outermost(self) -> None:
        for kind, undo in self._outermost.items():
            if undo is None:
                self._outermost[kind] = replace(kind, "__call__", self._watched(kind.__call__))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        began, ended, learning = self._began, self._ended, self

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if learning._learning:  # the hooks for all modules see this call already
                return original(module, *args, **kwargs)
            began()
            try:
                return original(module, *args, **kwargs)
            finally:
                ended()

        return call
