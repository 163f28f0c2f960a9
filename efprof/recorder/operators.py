"""Gives `a * b` and `a[i]` on tensors a line of their own in a profiler window.

torch's profiler knows the line of a Python call; an operator is none, and what it allocates would be blamed on
the call around it. While a window is open, each operator is a Python function.
"""

import functools
from typing import Any

import torch

from efprof.recorder.hooks import Undo, replace
from efprof.recorder.stand_in import StandIn

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "getitem", "setitem")
OPERATORS = (
    *(f"__{prefix}{name}__" for name in BINARY for prefix in ("", "r", "i")),
    *(f"__{name}__" for name in OTHERS),
)


def watch_operators() -> list[Undo]:
    """Replace the operators of torch.Tensor by functions that call them.

    Whoever asks for one gets the original: torch itself does, to tell a tensor's subclass which one was called.
    """
    names = [name for name in OPERATORS if hasattr(torch.Tensor, name)]
    originals = {name: getattr(torch.Tensor, name) for name in names}
    return [replace(torch.Tensor, name, StandIn(_called(one), one)) for name, one in originals.items()]


def _called(operator: Any) -> Any:
    @functools.wraps(operator)
    def call(*operands: Any) -> Any:
        return operator(*operands)

    return call
