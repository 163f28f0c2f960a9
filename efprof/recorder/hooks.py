"""Puts the loop's entry points into torch, from outside, and takes them out again."""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.recorder.captured_steps import CapturedSteps
from efprof.recorder.loop import Loop
from efprof.recorder.pattern import OTHER, UPDATE, UPDATED
from efprof.recorder.shell import Shell
from efprof.recorder.sites import Sites
from efprof.recorder.sprint import Sprint

Undo = Callable[[], None]

NUMBER = "_efprof_number"
"""The attribute by which a loader's iterator, which nobody pickles or copies, knows its loader's number."""


def replace(owner: Any, name: str, new: Any) -> Undo:
    """Set an attribute of a class or module; the result puts the old one back, unless the program has changed it."""
    had_own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, new)
    forget = _script_as(old, new)

    def undo() -> None:
        forget()
        if vars(owner).get(name) is not new:  # the program has deleted it, or put its own there
            return
        if had_own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)

    return undo


def _nothing() -> None: ...


def _script_as(old: Any, new: Any) -> Undo:
    """TorchScript knows torch's own functions by their `id`: have it take ours for the original."""
    known: dict[int, str] | None = getattr(sys.modules.get("torch.jit._builtins"), "_builtin_table", None)
    name = None if known is None else known.get(id(old))
    if known is None or name is None:
        return _nothing
    known[id(new)] = name

    def forget() -> None:
        known.pop(id(new), None)

    return forget


def watch_loaders(loop: Loop, sprint: Sprint, shell: Shell, numbers: WeakKeyDictionary[Any, int]) -> list[Undo]:
    """Enter the stage `data` whenever a DataLoader starts or is asked for a batch; `numbers` tells loaders apart."""
    opened = shell.guarded("loop", lambda loader: loop.fetch_began(numbers.get(loader), is_start=True))
    broke_off = shell.guarded("loop", loop.fetch_broke_off)
    numbered = shell.guarded("loop", functools.partial(_number_iterator, numbers))
    began = shell.guarded("loop", lambda iterator: loop.fetch_began(iterator.__dict__.get(NUMBER)))
    ended = shell.guarded("loop", loop.fetch_ended)
    exhausted = shell.guarded("loop", loop.data_ended)
    start, advance = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    @functools.wraps(start)
    def iterate(self: Any) -> Any:
        try:  # from the first mark on: a signal's handler may raise in it
            opened(self)
            iterator = start(self)
        finally:
            broke_off()
        numbered(self, iterator)
        return iterator

    count = shell.guarded("loop", sprint.count)
    fetch = sprint.watch.fetching(advance, began, ended, count, exhausted, broke_off)
    functools.update_wrapper(fetch, advance)

    return [replace(DataLoader, "__iter__", iterate), replace(_BaseDataLoaderIter, "__next__", fetch)]


def _number_iterator(numbers: WeakKeyDictionary[Any, int], loader: Any, iterator: Any) -> None:
    number = numbers.get(loader)
    if number is not None and isinstance(iterator, _BaseDataLoaderIter):
        iterator.__dict__[NUMBER] = number


def watch_backward(loop: Loop, sprint: Sprint, shell: Shell, sites: Sites) -> list[Undo]:
    """Enter the stage `backward` at `torch.autograd.backward`, which `Tensor.backward` calls too, and at `grad`."""

    def enter(tensors: Any, gradients: Any) -> None:
        site = sites.of_caller(sys._getframe()) if loop.is_ours or loop.has_turns else None
        loop.backward_entered(tensors, gradients, site)

    def enter_again(tensors: Any, gradients: Any) -> None:
        step = loop.step
        if step is not None:
            step.backward_site = sites.of_caller(sys._getframe())
            for listener in loop.backward_began:
                listener(step, tensors, gradients)

    mark, noted = sprint.watch.mark, shell.guarded("loop", enter_again)
    entered = shell.guarded("loop", enter)
    asked = shell.guarded("loop", loop.gradients_entered)
    left = shell.guarded("loop", loop.backward_left)
    original, gradients = torch.autograd.backward, torch.autograd.grad
    backward = sprint.watch.going_backward(original, entered, noted, left)
    functools.update_wrapper(backward, original)

    @functools.wraps(gradients)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            mark(OTHER)
            asked(inputs)
            return gradients(outputs, inputs, *args, **kwargs)
        finally:
            left()

    return [replace(torch.autograd, "backward", backward), replace(torch.autograd, "grad", grad)]


def watch_optimizers(loop: Loop, sprint: Sprint, shell: Shell) -> list[Undo]:
    """Enter the stage `optimizer` by torch's own hooks for every optimizer."""
    num_nested = 0

    def enter(optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        nonlocal num_nested
        if loop.is_in_optimizer and loop.is_ours and _num_running_steps() > 1:
            num_nested += 1
            return
        num_nested = 0
        loop.optimizer_entered(optimizer, has_closure)

    def leave(optimizer: torch.optim.Optimizer) -> None:
        nonlocal num_nested
        if num_nested and loop.is_ours:
            num_nested -= 1
            return
        loop.optimizer_left(optimizer)

    def enter_again(optimizer: torch.optim.Optimizer) -> None:
        if not sprint.is_of_pattern(optimizer):
            loop.turn_to(optimizer)
        elif (step := loop.step) is not None:
            for listener in loop.optimizer_began:
                listener(step, optimizer)

    entered, left = shell.guarded("loop", enter), shell.guarded("loop", leave)
    noted, read_memory = shell.guarded("loop", enter_again), shell.guarded("loop", sprint.read_memory)
    updates, updated = sprint.watch.updates, sprint.watch.updated

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        took = updates(optimizer, args, kwargs)
        if took is None:
            # Of the arguments of `Optimizer.step`, itself among them.
            entered(optimizer, (args[1] if len(args) > 1 else kwargs.get("closure")) is not None)
        elif not took:
            noted(optimizer)

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        took = updated()
        if took is None:
            left(optimizer)
        elif not took:
            read_memory()

    return [register_optimizer_step_pre_hook(before).remove, register_optimizer_step_post_hook(after).remove]


def watch_updates(loop: Loop, sprint: Sprint, shell: Shell) -> list[Undo]:
    """Enter the stage `optimizer` while gradients are clipped, and while a learning rate moves on."""
    undo = []
    for watch, name in ((_clipping, "clip_grad_norm_"), (updating, "clip_grad_value_")):
        # One function for both places, if it is one there: it is pickled by its name in one of them.
        watching: dict[int, Callable[..., Any]] = {}
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            original = getattr(owner, name)
            if id(original) not in watching:
                watching[id(original)] = watch(loop, sprint, shell, original)
            undo.append(replace(owner, name, watching[id(original)]))
    for kind, name in _moves_of_schedules():
        undo.append(replace(kind, name, updating(loop, sprint, shell, getattr(kind, name))))
    return undo


def watch_captures(loop: Loop, shell: Shell) -> list[Undo]:
    """Look away while a CUDA graph is captured, and see a step where a graph that holds one is replayed."""
    if not hasattr(torch.cuda, "CUDAGraph") or not hasattr(torch.cuda.CUDAGraph, "capture_begin"):
        return []
    kind, stepping = torch.cuda.CUDAGraph, CapturedSteps(loop)
    paused = shell.guarded("loop", stepping.capture_began)
    resumed = shell.guarded("loop", stepping.capture_ended)
    replayed = shell.guarded("loop", stepping.replayed)
    begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        paused(self)
        begin(self, *args, **kwargs)

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        finally:
            resumed()

    @functools.wraps(replay)
    def watched_replay(self: Any) -> None:
        replay(self)
        replayed(self)

    new = {"capture_begin": capture_begin, "capture_end": capture_end, "replay": watched_replay}
    return [replace(kind, name, function) for name, function in new.items()]


def updating(loop: Loop, sprint: Sprint, shell: Shell, original: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which enters the stage `optimizer` while it runs."""
    began, ended = shell.guarded("loop", loop.update_began), shell.guarded("loop", loop.update_ended)
    mark = sprint.watch.mark

    @functools.wraps(original)
    def update(*args: Any, **kwargs: Any) -> Any:
        if loop.is_updating:  # a schedule of schedules
            return original(*args, **kwargs)
        loop.is_updating = True
        try:
            if not mark(UPDATE):
                began()
            return original(*args, **kwargs)
        finally:
            loop.is_updating = False
            if not mark(UPDATED):
                ended()

    return update


def _clipping(loop: Loop, sprint: Sprint, shell: Shell, original: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and what the gradients were clipped by is taken."""
    began, ended = shell.guarded("loop", loop.update_began), shell.guarded("loop", loop.update_ended)
    clipped = shell.guarded("loop", loop.gradients_clipped)

    def taken(norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        clipped(norm, args[1] if len(args) > 1 else kwargs.get("max_norm"))

    run = sprint.watch.clipping(original, began, ended, taken)

    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        return run(args, kwargs)

    return clip


def _moves_of_schedules() -> list[tuple[type[Any], str]]:
    """The methods that move a learning rate on; mostly one within `step`, which warns with the line of its caller."""
    kinds = _with_own_step(LRScheduler)
    if not hasattr(LRScheduler, "_update_lr"):
        return [(kind, "step") for kind in kinds]
    return [(LRScheduler, "_update_lr"), *((kind, "step") for kind in kinds if kind is not LRScheduler)]


def _with_own_step(kind: type[Any]) -> list[type[Any]]:
    """A class and those of torch below it that define `step` themselves."""
    below = [found for child in kind.__subclasses__() for found in _with_own_step(child)]
    is_own = "step" in vars(kind) and kind.__module__.startswith("torch.")
    return [*([kind] if is_own else []), *below]


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
