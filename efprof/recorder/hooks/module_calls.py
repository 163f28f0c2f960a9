"""Enters the stage `forward` at the outermost module call, in steps that are recorded in full; and what is compiled."""

import functools
import importlib
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from efprof.recorder.hooks.dynamo_skip import forget_functions, keep_out_of_graphs
from efprof.recorder.hooks.patching import Undo, call_after, replace
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.updates import optimizer_entered, optimizer_left
from efprof.recorder.numbers.step_numbers import living, parameters_of
from efprof.recorder.session.foreign import is_tensor, items_of
from efprof.recorder.session.shell import Shell

COMPILER = "torch._dynamo.eval_frame"

_RAISED = object()
"""In the place of what a call returns, where it raised."""


class ModuleCalls:
    """Hooks on every module call, which cost about 2 us each (measured): in light steps there are none.

    Hooks that come and go would make `torch.compile` compile again: they are never in while compiled code runs.
    """

    def __init__(self, loop: Loop, shell: Shell) -> None:
        self._began = shell.guarded("loop", loop.forward_began)
        self._ended = shell.guarded("loop", loop.forward_ended)
        self._loop, self._trainers = loop, loop.trainer_modules
        self._hooks: list[Undo] = []
        self._functions = CompiledFunctions(loop)
        self._num_compiled = 0
        self._depth = 0
        self._are_wanted = True
        self._may_hook = True
        self._shell = shell
        self._undo_compilation = self._watch_compilation()
        loop.light.mode_listeners.append(self._want)
        loop.watch_modules = self._want
        self._put_hooks_in()

    def remove(self) -> None:
        self._may_hook = False
        self._take_hooks_out()
        self._undo_compilation()

    def _want(self, are_wanted: bool) -> None:
        self._are_wanted = are_wanted
        self._depth = 0
        if are_wanted:
            self._put_hooks_in()
        else:
            self._take_hooks_out()

    def _put_hooks_in(self) -> None:
        if self._are_wanted and self._may_hook and not self._hooks and not self._num_compiled:
            before = register_module_forward_pre_hook(self._before)
            after = register_module_forward_hook(self._after, always_call=True)
            self._hooks = [before.remove, after.remove]

    def _take_hooks_out(self) -> None:
        for undo in self._hooks:
            undo()
        self._hooks = []

    def _before(self, module: torch.nn.Module, inputs: Any) -> None:
        if module not in self._trainers:
            self._began(module, inputs)
            if self._loop.thread.is_training_thread:
                self._depth += 1
                if self._depth == 1 and self._are_wanted:
                    self._loop.module_began(module, inputs)

    def _after(self, module: torch.nn.Module, _: Any, result: Any) -> None:
        if module not in self._trainers:
            if self._loop.thread.is_training_thread:
                self._depth = max(0, self._depth - 1)
                if self._depth == 0 and self._are_wanted:
                    self._loop.module_ended(result)
            self._ended()

    # Compiled code.

    def _watch_compilation(self) -> Undo:
        """See compiled code from now on; the compiler is there once somebody has asked for it."""
        undo: list[Undo] = []

        def prepare_once() -> None:
            if not undo:
                module = importlib.import_module(COMPILER).OptimizedModule  # of it is what is made of any module
                call = self._around(
                    module.__call__,
                    lambda args: self._before(args[0], args[1:]),
                    lambda args, result: self._after(args[0], None, result),
                )
                undo.append(replace(module, "__call__", call))
                undo.append(
                    _watch_compiler(
                        self._shell,
                        self._shell.guarded("loop", self._compilation_began),
                        self._shell.guarded("loop", self._loop.note_compilation),
                    )
                )

        prepare, original = self._shell.guarded("compilation", prepare_once), torch.compile

        @functools.wraps(original)
        def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            compiled = original(model, *args, **kwargs)
            prepare()
            is_function = callable(model) and compiled is not model and not isinstance(compiled, torch.nn.Module)
            return self._watched(model, compiled) if is_function else compiled

        undo_compile = replace(torch, "compile", compile_)
        if COMPILER in sys.modules:
            prepare()

        def undo_all() -> None:
            for back in [undo_compile, *undo]:
                back()

        return undo_all

    def _watched(self, model: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
        owner = getattr(model, "__self__", None)
        if isinstance(owner, torch.nn.Module) and model.__name__ == "_call_impl":  # what `Module.compile` puts into one
            return self._around(
                compiled,
                lambda args: self._before(owner, args),
                lambda _, result: self._after(owner, None, result),
            )
        function, functions = CompiledFunction(), self._functions
        return self._around(
            compiled, lambda _: functions.began(function), lambda _, result: functions.ended(function, result)
        )

    def _around(
        self, original: Callable[..., Any], began: Callable[[Any], None], ended: Callable[[Any, object], None]
    ) -> Callable[..., Any]:
        """`original`, which is compiled: no hook on modules is in while it runs."""

        def enter(args: Any) -> None:
            if self._loop.thread.is_training_thread:
                self._num_compiled += 1
                self._take_hooks_out()
                began(args)

        def leave(args: Any, result: object) -> None:
            if self._loop.thread.is_training_thread:
                ended(args, result)
                self._num_compiled = max(0, self._num_compiled - 1)
                self._put_hooks_in()

        entered, left = self._shell.guarded("loop", enter), self._shell.guarded("loop", leave)

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            entered(args)
            result: object = _RAISED
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                left(args, result)

        return run

    def _compilation_began(self) -> None:
        """Of code that was compiled before the recording began: whatever is running now, its end will not be seen."""
        if self._hooks and self._loop.thread.is_training_thread:
            self._may_hook = False
            for _ in range(self._depth):
                self._ended()
            self._take_hooks_out()


def _watch_compiler(shell: Shell, of_python: Callable[[], None], of_any: Callable[[], None]) -> Undo:
    handler = importlib.import_module("torch._dynamo.callback").callback_handler
    keep_out = shell.guarded("compilation", keep_out_of_graphs)
    is_out = False

    def began(details: Any = None, *_: Any) -> None:
        nonlocal is_out
        if not is_out:
            is_out = True
            keep_out(keep_out.__code__)  # not before: now all hooks are in place
        of_any()
        # Not where a graph is compiled that was traced before: its backward pass comes late.
        trigger = getattr(details, "callback_trigger", None)  # torch 2.7 and newer
        if getattr(trigger, "name", "DYNAMO") == "DYNAMO":
            of_python()

    watch = functools.partial(handler.register_start_callback, began)
    watch()
    undo_clear = call_after(handler, "clear", watch)  # by `torch._dynamo.reset`

    def undo() -> None:
        undo_clear()
        if began in handler.start_callbacks:
            handler.remove_start_callback(began)
        forget_functions()

    return undo


Optimizer = weakref.ref[torch.optim.Optimizer]


@dataclass(slots=True, eq=False)
class CompiledFunction:
    """What is known of one: nothing before its first call with gradients on."""

    is_known: bool = False
    is_forward: bool = False
    is_whole: bool = False
    """Whether a backward pass is made within it, before its update."""
    optimizers: list[Optimizer] = field(default_factory=list)
    num_updates: int = 0
    """That had been seen when its call began."""
    progress: tuple[int, int, int] = (0, 0, 0)
    """Of the loop, when its call began."""
    versions: dict[Optimizer, int] | None = None
    """When the call began that shows what it does."""


@dataclass(eq=False)
class CompiledFunctions:
    """Enters `forward` for a function that returns what has a gradient, `optimizer` for one that steps one.

    Of one that is a whole step its backward pass is seen, and at its end the update.
    """

    _loop: Loop

    def began(self, function: CompiledFunction) -> None:
        loop = self._loop
        function.num_updates, function.progress = loop.num_updates, self._progress()
        if loop.light.is_on or loop.thread.is_capturing:
            return
        if function.is_forward:
            loop.forward_began()
        elif function.optimizers:
            first = function.optimizers[0]()
            is_update = loop.step is not None and loop.step.has_gradients and not function.is_whole
            if first is not None and is_update:
                optimizer_entered(loop, first)
        elif not function.is_known and torch.is_grad_enabled():
            function.versions = _versions()

    def ended(self, function: CompiledFunction, result: object) -> None:
        loop, versions, function.versions = self._loop, function.versions, None
        if function.is_forward and not loop.light.is_on:
            loop.forward_ended()
        if result is _RAISED:
            return
        before, now = function.progress, self._progress()
        has_passed = loop.light.steps.has_passes if loop.light.is_on else before[:2] != now[:2]
        if versions is not None and torch.is_grad_enabled() and not loop.light.is_on:
            function.is_known, function.is_whole = True, has_passed
            function.is_forward = before == now and _has_gradient(result)
            function.optimizers = [one for one, version in _versions().items() if versions.get(one, version) != version]
        if function.is_whole and not has_passed:
            return  # it was only to evaluate
        if loop.num_updates == function.num_updates:  # else that was seen: the compiler leaves some hooks to Python
            for optimizer in filter(None, (one() for one in function.optimizers)):
                if loop.clock.opener != "optimizer":
                    optimizer_entered(loop, optimizer)
                optimizer_left(loop, optimizer)

    def _progress(self) -> tuple[int, int, int]:
        step = self._loop.step
        return self._loop.num_steps, step.num_backwards if step else 0, len(step.stepped) if step else 0


def _versions() -> dict[Optimizer, int]:
    """Of each optimizer's parameters, added up: it grows whenever one is written to."""
    return {
        weakref.ref(optimizer): sum(one._version for one in parameters_of(optimizer))
        for optimizer in living(torch.optim.Optimizer)
    }


def _has_gradient(result: object) -> bool:
    """Whether a tensor in it was computed from what requires a gradient."""
    return result.grad_fn is not None if is_tensor(result) else any(map(_has_gradient, items_of(result)))
