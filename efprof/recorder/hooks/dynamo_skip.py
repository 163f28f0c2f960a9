"""Keeps the recorder's own functions out of what `torch.compile` traces, so that it compiles what it always would.

Only used once somebody compiles: the compiler is not imported before.
"""

import gc
import importlib
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

PACKAGE = "efprof.recorder"

TRACED = __name__
"""What the compiler does meet: the substitutes below."""

OWNERS = (torch, torch.autograd, torch.cuda, torch.cuda.memory, torch.nn.utils, torch.nn.utils.clip_grad, gc)
"""Modules whose functions compiled code may call, and the recorder replaces."""


def keep_out_of_graphs(entrance: CodeType) -> None:
    """Have the compiler skip the frames of ours, and see the original wherever it meets a function of ours.

    To be called once per recording, when all hooks are in place. Through `entrance` all else of ours is called.
    """
    rules = importlib.import_module("torch._dynamo.trace_rules")
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{PACKAGE}.") and name != TRACED and not hasattr(module, "__path__"):
            rules.add(name)  # of a package it would skip the whole folder, and what stands in for our functions too
    evaluation, types = (importlib.import_module(f"torch._dynamo.{name}") for name in ("eval_frame", "types"))
    skip = types.FrameAction.SKIP  # with all that is called below
    evaluation.set_code_exec_strategy(entrance, types.FrameExecStrategy(skip, skip))
    named = rules.get_torch_obj_rule_map()  # by their place in torch: there the compiler takes ours for the original
    for function in _replaced_functions():
        original: Any = function
        while isinstance(original, FunctionType) and _is_ours(original):
            original = original.__wrapped__  # type: ignore[attr-defined] # `functools.wraps` notes it
        if function not in named:
            _substitute(function, _traceable(original))
    for hook in _optimizer_hooks():
        _substitute(hook, _traceable(_do_nothing))


def forget_functions() -> None:
    """Once the originals are back: the compiler looks functions up by their place in torch, once, and found ours."""
    importlib.import_module("torch._dynamo.trace_rules").get_torch_obj_rule_map.cache_clear()


def _replaced_functions() -> list[FunctionType]:
    found = [value for owner in OWNERS for value in vars(owner).values() if isinstance(value, FunctionType)]
    return list({id(function): function for function in found if _is_ours(function)}.values())


def _optimizer_hooks() -> list[FunctionType]:
    module = importlib.import_module("torch.optim.optimizer")
    hooks = [*module._global_optimizer_pre_hooks.values(), *module._global_optimizer_post_hooks.values()]
    return [hook for hook in hooks if isinstance(hook, FunctionType) and _is_ours(hook)]


def _substitute(function: FunctionType, substitute: Callable[..., Any]) -> None:
    torch.compiler.substitute_in_graph(function, skip_signature_check=True)(substitute)


def _traceable(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return call


def _do_nothing(*args: Any, **kwargs: Any) -> None: ...


def _is_ours(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__", "")).startswith(f"{PACKAGE}.")
