"""Sees where compiled code is entered and left, without importing the compiler where nobody uses it."""

import functools
import importlib
import sys
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from efprof.recorder.compiled_functions import CompiledFunction
from efprof.recorder.hooks import Undo, replace
from efprof.recorder.shell import Shell
from efprof.recorder.untraced import forget_functions, keep_out_of_graphs

if TYPE_CHECKING:
    from efprof.recorder.module_calls import ModuleCalls

COMPILER = "torch._dynamo.eval_frame"


def watch_compilation(watcher: "ModuleCalls", shell: Shell) -> Undo:
    """Tell `watcher` of compiled code from now on; the compiler is there once somebody has asked for it."""
    undo: list[Undo] = []

    def prepare_once() -> None:
        if not undo:
            undo.append(_watch_modules(watcher))
            undo.append(_watch_compiler(watcher, shell))

    prepare, original = shell.guarded("compilation", prepare_once), torch.compile

    @functools.wraps(original)
    def compile_(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = original(model, *args, **kwargs)
        prepare()
        is_function = callable(model) and compiled is not model and not isinstance(compiled, torch.nn.Module)
        return _watched(model, compiled, watcher) if is_function else compiled

    undo_compile = replace(torch, "compile", compile_)
    if COMPILER in sys.modules:
        prepare()

    def undo_all() -> None:
        for back in [undo_compile, *undo]:
            back()

    return undo_all


def _watch_modules(watcher: "ModuleCalls") -> Undo:
    """What `torch.compile` makes of a module, all of one class."""
    kind = importlib.import_module(COMPILER).OptimizedModule
    return replace(kind, "__call__", _watched_call(kind.__call__, watcher))


def _watch_compiler(watcher: "ModuleCalls", shell: Shell) -> Undo:
    handler = importlib.import_module("torch._dynamo.callback").callback_handler
    keep_out = shell.guarded("compilation", keep_out_of_graphs)
    is_out = False

    def began(*details: Any) -> None:
        nonlocal is_out
        if not is_out:
            is_out = True
            keep_out(keep_out.__code__)  # not before: now all hooks are in place
        if _is_of_python(*details):
            watcher.compilation_began()

    handler.register_start_callback(began)

    def undo() -> None:
        if began in handler.start_callbacks:  # `torch._dynamo.reset` forgets them all
            handler.remove_start_callback(began)
        forget_functions()

    return undo


def _is_of_python(details: Any = None, *_: Any) -> bool:
    """Whether it is Python that is compiled, and not a graph that was traced before: its backward pass comes late."""
    trigger = getattr(details, "callback_trigger", None)  # torch 2.7 and newer
    return getattr(trigger, "name", "DYNAMO") == "DYNAMO"


def _watched(model: Any, compiled: Callable[..., Any], watcher: "ModuleCalls") -> Callable[..., Any]:
    if isinstance(model, MethodType) and isinstance(model.__self__, torch.nn.Module) and model.__name__ == "_call_impl":
        return _watched_call(compiled, watcher, model.__self__)  # what `Module.compile` puts into a module
    return _watched_function(compiled, watcher)


def _watched_call(
    original: Callable[..., Any], watcher: "ModuleCalls", module: torch.nn.Module | None = None
) -> Callable[..., Any]:
    """What calls this module, or the one that it is given first."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        called = args[0] if module is None else module
        watcher.module_began(called)
        try:
            return original(*args, **kwargs)
        finally:
            watcher.module_ended(called)

    return run


def _watched_function(compiled: Callable[..., Any], watcher: "ModuleCalls") -> Callable[..., Any]:
    function = CompiledFunction()

    @functools.wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Any:
        watcher.function_began(function)
        try:
            result = compiled(*args, **kwargs)
        finally:
            watcher.function_ended(function)
        if not function.is_known:
            watcher.function_returned(function, result)
        return result

    return run
