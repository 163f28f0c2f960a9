"""What a call is: a function without arguments, the same at each call, whose result can be compared."""

from collections.abc import Callable
from typing import Any

import torch

Calls = dict[str, Callable[[], Any]]
"""By what they do."""


def attempt(call: Callable[[], Any]) -> Any:
    """What it returns, or how it fails: for a call that is one of several."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def scalar(value: float = 1.5, *, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor(value, requires_grad=requires_grad)


def vector(*, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=requires_grad)


def grid() -> torch.Tensor:
    return torch.arange(12.0).view(3, 4)
