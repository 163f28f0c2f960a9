"""Puts the loop's entry points into torch, from outside, and takes them out again."""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.recorder.loop import Loop
from efprof.recorder.open_step import OpenStep
from efprof.recorder.shell import Shell
from efprof.recorder.sites import Sites

Undo = Callable[[], None]

NUMBER = "_efprof_number"
"""The attribute by which a loader's iterator, which nobody pickles or copies, knows its loader's number."""

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


def watch_loaders(loop: Loop, shell: Shell, numbers: WeakKeyDictionary[Any, int]) -> list[Undo]:
    """Enter the stage `data` whenever a DataLoader starts or is asked for a batch; `numbers` tells loaders apart."""
    opened = shell.guarded("loop", lambda loader: loop.fetch_began(numbers.get(loader)))
    started = shell.guarded("loop", loop.loader_started)
    numbered = shell.guarded("loop", functools.partial(_number_iterator, numbers))
    began = shell.guarded("loop", lambda iterator: loop.fetch_began(iterator.__dict__.get(NUMBER)))
    ended = shell.guarded("loop", loop.fetch_ended)
    exhausted = shell.guarded("loop", loop.data_ended)
    failed = shell.guarded("loop", loop.fetch_failed)
    start, advance = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    @functools.wraps(start)
    def iterate(self: Any) -> Any:
        opened(self)
        try:
            iterator = start(self)
        finally:
            started()
        numbered(self, iterator)
        return iterator

    @functools.wraps(advance)
    def fetch(self: Any) -> Any:
        began(self)
        try:
            batch = advance(self)
        except StopIteration:
            exhausted()
            raise
        except BaseException:
            failed()
            raise
        ended(batch)
        return batch

    return [replace(DataLoader, "__iter__", iterate), replace(_BaseDataLoaderIter, "__next__", fetch)]


def _number_iterator(numbers: WeakKeyDictionary[Any, int], loader: Any, iterator: Any) -> None:
    number = numbers.get(loader)
    if number is not None and isinstance(iterator, _BaseDataLoaderIter):
        iterator.__dict__[NUMBER] = number


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
    num_nested = 0

    def enter(optimizer: torch.optim.Optimizer) -> None:
        nonlocal num_nested
        if loop.stage == "optimizer" and loop.is_ours and _num_running_steps() > 1:
            num_nested += 1
            return
        num_nested = 0
        loop.optimizer_entered(optimizer)

    def leave(optimizer: torch.optim.Optimizer) -> None:
        nonlocal num_nested
        if num_nested and loop.is_ours:
            num_nested -= 1
            return
        loop.optimizer_left(optimizer)

    entered, left = shell.guarded("loop", enter), shell.guarded("loop", leave)
    before = register_optimizer_step_pre_hook(lambda optimizer, *_: entered(optimizer))
    after = register_optimizer_step_post_hook(lambda optimizer, *_: left(optimizer))
    return [before.remove, after.remove]


def _num_running_steps() -> int:
    """How many calls of `Optimizer.step` are on the stack: a subclass calls its parent's, a wrapper another's."""
    frame: FrameType | None = sys._getframe()
    count = 0
    while frame is not None:
        count += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return count


_STEP_CODE = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
"""The function that torch puts around every optimizer's `step`, and that calls the hooks."""


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
        self._before = shell.guarded("loop", self._before_any)
        self._after = shell.guarded("loop", self._after_any)
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
            before = register_module_forward_pre_hook(self._before)
            after = register_module_forward_hook(self._after, always_call=True)
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
                self._outermost[kind] = replace(kind, "__call__", self._watched(kind))

    def _watched(self, kind: type[torch.nn.Module]) -> Callable[..., Any]:
        began, ended, learning = self._began, self._ended, self
        own = vars(kind).get("__call__")

        @functools.wraps(kind.__call__)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Looked up at each call: torch.fx and others replace Module.__call__ for a while.
            original: Any = functools.partial(own, module) if own else super(kind, module).__call__  # type: ignore[misc]
            if learning._learning:  # the hooks for all modules see this call already
                return original(*args, **kwargs)
            began()
            try:
                return original(*args, **kwargs)
            finally:
                ended()

        return call
