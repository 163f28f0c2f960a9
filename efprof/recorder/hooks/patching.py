"""Puts a function of ours in the place of one of torch's or the program's, and takes it out again."""

import functools
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch

from efprof.recorder.budget.light_steps import LightLoop

Undo = Callable[[], None]


def replace(owner: Any, name: str, new: Any) -> Undo:
    """Set an attribute of a class or module; the result puts the old one back, unless the program has changed it."""
    had_own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, new)
    # TorchScript knows torch's own functions by their `id`: have it take ours for the original.
    known: dict[int, str] = getattr(sys.modules.get("torch.jit._builtins"), "_builtin_table", None) or {}
    if id(old) in known:
        known[id(new)] = known[id(old)]

    def undo() -> None:
        known.pop(id(new), None)
        if vars(owner).get(name) is not new:  # the program has deleted it, or put its own there
            return
        if had_own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)

    return undo


def call_before(owner: Any, name: str, function: Callable[..., None]) -> Undo:
    """Have `function`, which is harmless, called with the arguments of this one before it runs."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        function(*args)
        return original(*args, **kwargs)

    return replace(owner, name, call)


def call_after(owner: Any, name: str, function: Callable[..., None]) -> Undo:
    """The same once it has returned, unless it raised."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        function(*args)
        return result

    return replace(owner, name, call)


def call_when_cuda_begins(function: Callable[[], None]) -> Undo:
    """Have torch call it once it starts CUDA, at once where it has; undone, no longer."""
    torch.cuda._lazy_call(function)  # type: ignore[no-untyped-call]
    waiting = torch.cuda._queued_calls

    def undo() -> None:
        waiting[:] = [one for one in waiting if one[0] is not function]

    return undo


@dataclass(slots=True, eq=False)
class MethodWrapper:
    """Is `function` to whoever calls the method of an object, `original` to whoever asks the class or pickles it.

    While `light` is on, it is `original` to all.
    """

    _function: Callable[..., Any]
    _original: Callable[..., Any]
    _light: LightLoop | None = None

    def __get__(self, instance: object, kind: type | None = None) -> Callable[..., Any]:
        if instance is None:
            return self._original
        is_light = self._light is not None and self._light.is_on
        return MethodType(self._original if is_light else self._function, instance)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return operator.getitem, ((self._original,), 0)
