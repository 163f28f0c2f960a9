"""Puts the loop's entry points into torch, from outside, and takes them out again."""

import functools
import traceback
from collections.abc import Callable
from math import isfinite
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, GeneratorType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from efprof.recorder.hooks.patching import Undo, replace
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.updates import optimizer_entered, optimizer_left, update_began, update_ended
from efprof.recorder.numbers.step_numbers import read_value
from efprof.recorder.session.shell import Guard
from efprof.recorder.session.sites import Sites, callers
from efprof.recorder.session.writing import is_of_a_signal

_RUNNING_PASS = torch._C._current_graph_task_id
_NUM_MODES, _NUM_OVERRIDES = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack

NUMBER = "_efprof_number"
"""The attribute by which a loader's iterator, which nobody pickles or copies, knows its loader's number."""


def watch_loaders(loop: Loop, guard: Guard) -> list[Undo]:
    """Enter the stage `data` whenever a DataLoader starts or is asked for a batch."""
    began = guard(functools.partial(_tell, loop, loop.loader_began))
    opened = guard(lambda loader: loop.fetch_began(loop.loader_numbers.get(loader), is_start=True))
    failed = guard(loop.fetch_left)
    started = guard(functools.partial(_number_iterator, loop))
    start = DataLoader.__iter__

    @functools.wraps(start)
    def iterate(self: Any) -> Any:
        began(self)
        try:  # from the first call on: a signal's handler may raise in it
            opened(self)
            iterator = start(self)
        finally:
            failed()
        started(self, iterator)
        return iterator

    return [
        replace(DataLoader, "__iter__", iterate),
        replace(_BaseDataLoaderIter, "__next__", fetching(loop, guard, _BaseDataLoaderIter.__next__)),
    ]


def fetching(loop: Loop, guard: Guard, advance: Callable[..., Any]) -> Callable[..., Any]:
    """A `__next__` that enters the stage `data` while it runs; `loop.loader_ended` is told of the last."""
    light = loop.light
    began = guard(lambda iterator: loop.fetch_began(iterator.__dict__.get(NUMBER)))
    ended, exhausted = guard(loop.fetch_ended), guard(loop.data_ended)
    over = guard(lambda iterator: _tell(loop, loop.loader_ended, iterator, iterator.__dict__.get(NUMBER)))
    failed = guard(loop.fetch_left)

    @functools.wraps(advance)
    def fetch(iterator: Any) -> Any:
        if light.is_on and not light.is_burst_due:
            try:
                return advance(iterator)
            except StopIteration:
                over(iterator)
                raise
        has_come = False
        try:
            began(iterator)
            batch = advance(iterator)
            has_come = True
        except StopIteration:
            exhausted()
            over(iterator)
            raise
        finally:
            if not has_come:
                failed()
        ended(batch)
        return batch

    return fetch


def _tell(loop: Loop, listeners: Callable[..., None], *what: Any) -> None:
    if loop.thread.is_training_thread:
        listeners(*what)


def _number_iterator(loop: Loop, loader: Any, iterator: Any) -> None:
    number = loop.loader_numbers.get(loader)
    if number is not None and isinstance(iterator, _BaseDataLoaderIter):
        iterator.__dict__[NUMBER] = number
    _tell(loop, loop.loader_started, loader, iterator)


def watch_backward(loop: Loop, guard: Guard, sites: Sites) -> list[Undo]:
    """Enter the stage `backward` at `torch.autograd.backward`, which `Tensor.backward` calls too, and at `grad`.

    Not where they are called within a pass, as by reentrant checkpointing: that is part of it.
    """

    def enter(tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not loop.thread.trains_in_caller():
            return
        gradients, retains_graph, creates_graph = _given(*args, **kwargs)
        if loop.light.is_on:
            loop.light.steps.backward_entered(tensors, gradients)
            return
        loop.backward_entered(tensors, gradients, sites.of_caller(), retains_graph, creates_graph)

    return [
        replace(torch.autograd, "backward", _watched_backward(loop, guard, guard(enter))),
        replace(torch.autograd, "grad", _watched_grad(loop, guard)),
    ]


def _watched_backward(loop: Loop, guard: Guard, entered: Callable[..., None]) -> Callable[..., None]:
    light, lights, thread, steps = loop.light, loop.light.steps, loop.thread, loop.steps
    left, passed = guard(loop.backward_left), guard(light.pass_ended)
    lightly, original = guard(lights.backward_entered), torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        is_training_thread = get_ident() == thread.ident
        if _RUNNING_PASS() != -1 or (steps.clock is not None and thread.is_capturing):
            original(tensors, *args, **kwargs)
            return
        # As `loss.backward()` calls it, which gives no gradient, and names its `inputs` alone.
        is_light = (
            is_training_thread and light.is_on and args and args[0] is None and len(kwargs) == 1 and "inputs" in kwargs
        )
        try:  # from the first call on: a signal's handler may raise in it
            if not is_light:
                entered(tensors, args, kwargs)
            else:
                # A finite loss on the CPU is taken here, in no function of its own: those are what a pass costs.
                began, loss, scaled = perf_counter_ns(), None, lights.scaled
                if type(tensors) is torch.Tensor and not (_NUM_MODES() or _NUM_OVERRIDES()) and tensors.is_cpu:
                    try:
                        loss = read_value(scaled.unscaled(tensors) if scaled.by_id else tensors)
                    except RuntimeError as error:  # it has more than one; in torch.func's transformations none has one
                        if is_of_a_signal(error):
                            raise
                if type(loss) is float and isfinite(loss):
                    lights.waiting.append(loss)
                    lights.clocked_ns += perf_counter_ns() - began
                else:
                    lightly(tensors, None)
            original(tensors, *args, **kwargs)
        finally:
            if not is_light:
                left()
        if is_light and light.is_on and not light.ends_with_update:
            passed()

    return functools.wraps(original)(backward)


def _watched_grad(loop: Loop, guard: Guard) -> Callable[..., Any]:
    light, thread, original = loop.light, loop.thread, torch.autograd.grad
    asked, left = guard(loop.gradients_entered), guard(loop.backward_left)

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if light.is_on or _RUNNING_PASS() != -1 or thread.is_capturing:
            return original(outputs, inputs, *args, **kwargs)
        # An iterator can be gone through once. To ask its abstract class would be compiled, where this is.
        inputs = tuple(inputs) if hasattr(inputs, "__next__") else inputs
        try:
            asked(inputs)
            return original(outputs, inputs, *args, **kwargs)
        finally:
            left()

    return grad


def _given(
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    *_: Any,
    **__: Any,
) -> tuple[Any, bool, bool]:
    """The gradients, and whether it keeps and makes a graph: `torch.autograd.backward`'s arguments after its first."""
    gradients = grad_variables if grad_tensors is None else grad_tensors  # an old name of them
    return gradients, bool(create_graph if retain_graph is None else retain_graph), bool(create_graph)


def watch_optimizers(loop: Loop, guard: Guard) -> list[Undo]:
    light, thread = loop.light, loop.thread

    def enter(optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        if loop.clock.opener == "optimizer" and thread.is_training_thread and num_running_steps() > 1:
            loop.has_nested_steps = True
        else:
            optimizer_entered(loop, optimizer, has_closure)

    def leave(optimizer: torch.optim.Optimizer) -> None:
        if not loop.has_nested_steps or num_running_steps() < 2:
            optimizer_left(loop, optimizer)

    entered, left = guard(enter), guard(leave)
    lightly, looked = guard(light.steps.updated), guard(light.after_update)
    lights, sampling, updates_of = light.steps, loop.sampling, loop.updates_of

    def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (light.is_on and get_ident() == thread.ident):
            # Of the arguments of `Optimizer.step`, itself among them.
            entered(optimizer, (args[1] if len(args) > 1 else kwargs.get("closure")) is not None)

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        is_plain = light.is_on and get_ident() == thread.ident and not loop.has_nested_steps
        if is_plain and not (loop.steps.clock is not None and thread.is_capturing):
            loop.num_updates += 1
            updates_of[id(optimizer)] += 1
            lightly(id(optimizer))
            if light.is_burst_due or lights.number + 1 >= sampling.look_at:
                looked()
        else:
            left(optimizer)

    return [register_optimizer_step_pre_hook(before).remove, register_optimizer_step_post_hook(after).remove]


def watch_updates(loop: Loop, guard: Guard) -> list[Undo]:
    """Enter the stage `optimizer` while gradients are clipped, and while a learning rate moves on."""
    undo = []
    # One function for both places, if it is one there: it is pickled by its name in one of them.
    watched = functools.cache(functools.partial(_clipping, loop, guard))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        undo += [
            replace(owner, name, watched(getattr(owner, name))) for owner in (torch.nn.utils, torch.nn.utils.clip_grad)
        ]
    own = [
        kind for kind in LRScheduler.__subclasses__() if "step" in vars(kind) and kind.__module__.startswith("torch.")
    ]
    within = "_update_lr" if hasattr(LRScheduler, "_update_lr") else "step"  # `step` warns with the line of its caller
    for kind, name in ((LRScheduler, within), *((kind, "step") for kind in own)):
        undo.append(replace(kind, name, _scheduling(loop, guard, getattr(kind, name))))
    return undo


def updating(loop: Loop, guard: Guard, original: Callable[..., Any]) -> Callable[..., Any]:
    light = loop.light
    began, ended = (guard(functools.partial(told, loop)) for told in (update_began, update_ended))

    @functools.wraps(original)
    def update(*args: Any, **kwargs: Any) -> Any:
        if light.is_on or loop.is_updating or loop.thread.is_capturing:  # a schedule of schedules
            return original(*args, **kwargs)
        loop.is_updating = True
        try:
            began()
            return original(*args, **kwargs)
        finally:
            loop.is_updating = False
            ended()

    return update


def _scheduling(loop: Loop, guard: Guard, original: Callable[..., Any]) -> Callable[..., Any]:
    """The same; told is a schedule that moves on by one, unless another schedule has it do so."""
    light, updated = loop.light, updating(loop, guard, original)
    moved = guard(functools.partial(_tell, loop, loop.schedule_moved))

    @functools.wraps(original)
    def update(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        is_seen = not (light.is_on or loop.is_updating or loop.thread.is_capturing)
        if is_seen and all(given is None for given in (*args, *kwargs.values())):  # no epoch, no metric
            moved(schedule)
        return updated(schedule, *args, **kwargs)

    return update


def _clipping(loop: Loop, guard: Guard, original: Callable[..., Any]) -> Callable[..., Any]:
    """The same; told are the parameters and the bound before, and then the norm from before the clipping."""
    light, update = loop.light, updating(loop, guard, original)
    began = guard(functools.partial(_tell, loop, loop.clip_began))
    clipped = guard(functools.partial(_tell, loop, loop.clipped))

    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        if light.is_on or loop.thread.is_capturing or not (args or "parameters" in kwargs):
            return update(*args, **kwargs)
        given = args[0] if args else kwargs.pop("parameters")
        kept = list(given) if hasattr(given, "__next__") else given
        began(kept, args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value")))
        if kept is not given:  # torch warns of an empty one if it is a generator, and not if it is a filter
            given = (each for each in kept) if type(given) is GeneratorType else iter(kept)
        norm = update(given, *args[1:], **kwargs)
        if (args[2] if len(args) > 2 else kwargs.get("norm_type", 2.0)) == 2.0:
            clipped(norm, kept)
        return norm

    return clip


def num_running_steps() -> int:
    """How many calls of `Optimizer.step` are on the stack: a subclass calls its parent's, a wrapper another's."""
    return sum(frame.f_code is STEP_CODE for frame in callers())


STEP_CODE = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
"""The function that torch puts around every optimizer's `step`, and that calls the hooks."""

_CODES: dict[CodeType, str] = {torch.nn.Module._call_impl.__code__: "forward", STEP_CODE: "optimizer"}

_WRAPPERS = {
    "iterate": "data",
    "fetch": "data",
    "backward": "backward",
    "grad": "backward",
    "update": "optimizer",
    "clip": "optimizer",
}
"""The functions in here that stand in the place of others, by their names."""


def failed_stage(error: BaseException) -> str | None:
    """Of the error, or of the one that it came of, the innermost stage; None where it came from between them."""
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:  # a program can set a ring of contexts
        seen.add(id(link))
        stages = [_stage_of(frame.f_code) for frame, _ in traceback.walk_tb(link.__traceback__)]
        found = next(filter(None, reversed(stages)), None)
        if found is not None:
            return found
        link = link.__context__
    return None


def _stage_of(code: CodeType) -> str | None:
    if code.co_filename == __file__:
        return _WRAPPERS.get(code.co_name)
    return _CODES.get(code)
