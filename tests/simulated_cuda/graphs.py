"""CUDA graphs: what is captured is written down, and done again when the graph is replayed."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.simulated_cuda.timeline import NOT_PERMITTED


def make_graph_class(cuda: Any) -> type:
    """`torch.cuda.CUDAGraph` of these devices."""

    class CUDAGraph:
        def __init__(self, keep_graph: bool = False) -> None:
            self._tape: list[Any] = []

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            if cuda.capturing is not None:
                raise RuntimeError(NOT_PERMITTED)
            cuda.capturing, cuda.is_spoiled, cuda.tape = self, False, []

        def capture_end(self) -> None:
            if cuda.capturing is not self:
                raise RuntimeError("CUDA error: capture was not begun")
            cuda.capturing, self._tape, cuda.tape = None, cuda.tape, []
            if cuda.is_spoiled:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

        def replay(self) -> None:
            with torch.no_grad():
                for func, args, kwargs, result in filter(None, self._tape):
                    _again(func, args, kwargs, result)

        def reset(self) -> None:
            self._tape.clear()

    return CUDAGraph


def _again(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """The same operator on the same memory; what it made lies where it lay."""
    if func._schema.is_mutable:
        func(*args, **kwargs)
    elif not any(one.alias_info for one in func._schema.returns):
        for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
            if isinstance(old, torch.Tensor):
                old.detach().copy_(new)
