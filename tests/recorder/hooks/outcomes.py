"""What a call gave, as text that can be compared: results, errors and warnings, without addresses."""

import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

ADDRESS = re.compile(r"0x[0-9a-fA-F]+|(?<![\d.])\d{12,}\b")
"""In reprs, and identities as plain numbers."""


def outcome(call: Callable[[], Any]) -> str:
    """Of one call: what it returned or raised, then what it warned of and where."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            text = described(call())
        except Exception as error:
            text = f"raised {_error(error)}"
    told = [f"{one.category.__name__} at {one.filename}:{one.lineno}: {one.message}" for one in warned]
    return ADDRESS.sub("0x", " | ".join([text, *told]))


def outcomes(calls: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    return {name: outcome(call) for name, call in calls.items()}


def described(value: Any) -> str:
    """With its type, what is in it, and of a tensor all that a program can tell by."""
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor):
        return f"{kind}({_tensor(value)})"
    if isinstance(value, np.ndarray | np.generic):
        return f"{kind}({value.dtype}, {value.shape}, {value.tolist()!r})"
    if isinstance(value, Mapping):
        return f"{kind}({', '.join(f'{described(key)}: {described(one)}' for key, one in value.items())})"
    if isinstance(value, list | tuple | set | frozenset):
        return f"{kind}({', '.join(map(described, value))})"
    if isinstance(value, BaseException):
        return _error(value)
    return f"{kind} {value!r}"


def _tensor(it: torch.Tensor) -> str:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        facts = [it.dtype, tuple(it.shape), it.device, it.layout, it.requires_grad, it.is_leaf]
        node = type(it.grad_fn).__name__ if it.grad_fn is not None else None
        values = None if it.is_meta or it.layout != torch.strided or type(it).__name__ == "Inner" else it.tolist()
    return f"{facts}, {node}, {values!r}"


def _error(error: BaseException) -> str:
    """Its type, its message, its notes, and what it came of."""
    notes = getattr(error, "__notes__", [])
    causes = [type(one).__name__ for one in (error.__cause__, error.__context__) if one is not None]
    return f"{type(error).__module__}.{type(error).__qualname__}: {error} {notes} {causes}"


def where(error: BaseException) -> list[str]:
    """The functions that it came through."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]
