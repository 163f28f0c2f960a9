"""`torch.utils.swap_tensors`, which refuses a tensor that anybody has a weak reference to."""

import functools
from collections.abc import Callable
from typing import Any

import torch.utils

from efprof.recorder.hooks import Undo, replace


def watch_swaps(forget: Callable[[], None]) -> list[Undo]:
    """Call `forget` before tensors are swapped, as `Module.double` does where parameters are to stay the same objects.

    Where this torch cannot swap, there is nothing to watch.
    """
    original = getattr(torch.utils, "swap_tensors", None)
    if original is None:
        return []

    @functools.wraps(original)
    def swap_tensors(*tensors: Any) -> None:
        forget()
        original(*tensors)

    return [replace(torch.utils, "swap_tensors", swap_tensors)]
