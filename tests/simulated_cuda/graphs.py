"""CUDA graphs: what is captured is written down, and done when the graph is replayed."""

import itertools
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.simulated_cuda.operators import is_view
from tests.simulated_cuda.timeline import NOT_PERMITTED


def graph_base(cuda: Any) -> type:
    """`torch._C._CUDAGraph` of these devices."""
    pools = itertools.count(1)

    class _CUDAGraph:
        _has_graph_exec = False
        _tape: list[Any]
        _pool: tuple[int, int]

        def __new__(cls, keep_graph: bool = False) -> Any:
            graph = super().__new__(cls)
            graph._tape = []
            graph._pool = (0, next(pools))
            return graph

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            if cuda.capturing is not None:
                raise RuntimeError(NOT_PERMITTED)
            cuda.ask("capture")
            cuda.capturing, cuda.is_spoiled, cuda.tape = self, False, []
            self._pool = pool or self._pool

        def _end(self) -> None:
            if cuda.capturing is not self:
                raise RuntimeError("CUDA error: capture was not begun")
            cuda.capturing, self._tape, cuda.tape = None, cuda.tape, []
            if cuda.is_spoiled:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

        def instantiate(self) -> None:
            self._has_graph_exec = True

        def replay(self) -> None:
            cuda.ask("replay")
            with torch.no_grad():
                for func, args, kwargs, result in filter(None, self._tape):
                    _do(func, args, kwargs, result)

        def reset(self) -> None:
            self._tape = []

        def pool(self) -> tuple[int, int]:
            return self._pool

    if hasattr(torch.cuda.CUDAGraph, "capture_end_pre"):  # since torch 2.14
        setattr(_CUDAGraph, "capture_end_pre", _CUDAGraph._end)  # noqa: B010
        setattr(_CUDAGraph, "capture_end_post", lambda self: None)  # noqa: B010
    else:
        setattr(_CUDAGraph, "capture_end", _CUDAGraph._end)  # noqa: B010
    return _CUDAGraph


def _do(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """The operator on the memory that was captured; what it makes goes where its result lies."""
    if is_view(func):
        return
    for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(old, torch.Tensor) and old is not new:
            old.detach().copy_(new)
