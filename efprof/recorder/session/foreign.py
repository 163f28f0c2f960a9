"""What the program's own objects hold, without running any of its code.

A mapping of the program's may load, or augment, what it is asked for; an object may say that it is of another class.
"""

from collections import UserDict
from collections.abc import Iterable
from typing import TypeGuard

import torch


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """True if it is one, whatever its `__class__` says."""
    return issubclass(type(value), torch.Tensor)


def is_of_torch(value: object) -> bool:
    """True if its class is torch's own."""
    return type(value).__module__.partition(".")[0] == "torch"


def items_of(value: object) -> Iterable[object]:
    """What a dict, a list, a tuple, a UserDict (as transformers' batches are), or a subclass of one stores as such;
    empty of anything else.
    """
    kind = type(value)
    if issubclass(kind, dict):
        return dict.values(value)  # type: ignore[arg-type]
    if issubclass(kind, list):
        return list.__iter__(value)  # type: ignore[arg-type]
    if issubclass(kind, tuple):
        return tuple.__iter__(value)  # type: ignore[arg-type]
    if issubclass(kind, UserDict):
        return items_of(object.__getattribute__(value, "__dict__").get("data"))
    return ()
