"""What one of the user's variables keeps alive: tensors, their storages, and the autograd graphs behind them."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

MAX_GRAPH_NODES = 20_000
"""Per holder; walking them takes about 100 ms."""


class TimeIsUp(Exception):
    """Ends a walk from wherever it stands."""


@dataclass(slots=True)
class Clock:
    """When the walk of a variable has to end."""

    limit: float

    def check(self) -> None:
        """Raises TimeIsUp."""
        if time.perf_counter() > self.limit:
            raise TimeIsUp


@dataclass(kw_only=True, slots=True)
class Held:
    """What one variable, attribute or container holds, counted once; `file` is the path of its user's code."""

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    type: str
    length: int = 0
    tensors: int = 0
    tensor_bytes: int = 0
    graph_nodes: int = 0
    graph_bytes: int = 0
    _storages: set[int] = field(default_factory=set)
    _nodes: set[Any] = field(default_factory=set)

    def add(self, tensor: torch.Tensor, clock: Clock) -> None:
        """Count a tensor, its storage once, and the graph that it keeps."""
        self.tensors += 1
        self.tensor_bytes += self._bytes_of(tensor)
        if tensor.grad_fn is not None:
            self._add_graph(tensor.grad_fn, clock)

    def forget(self) -> None:
        """Let go of the nodes that were walked: a census must keep nothing alive."""
        self._nodes.clear()
        self._storages.clear()

    def _bytes_of(self, tensor: torch.Tensor) -> int:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return 0
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._storages:
            return 0
        self._storages.add(storage.data_ptr())
        return storage.nbytes()

    def _bytes_saved(self, node: Any, name: str) -> int:
        try:
            value = getattr(node, name)
        except RuntimeError:  # a backward pass has freed it
            return 0
        if isinstance(value, torch.Tensor):
            return self._bytes_of(value)
        tensors = value if isinstance(value, list | tuple) else ()
        return sum(self._bytes_of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor))

    def _bytes_of_leaf(self, leaf: Any) -> int:
        """An input that needs a gradient, and that gradient, live as long as the graph; parameters live anyway."""
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
            return 0
        return self._bytes_of(leaf) + (0 if leaf.grad is None else self._bytes_of(leaf.grad))

    def _add_graph(self, root: Any, clock: Clock) -> None:
        nodes, todo = self._nodes, [root]
        while todo and len(nodes) < MAX_GRAPH_NODES:
            node = todo.pop()
            if node in nodes:
                continue
            clock.check()
            nodes.add(node)
            self.graph_nodes = len(nodes)
            self.graph_bytes += self._bytes_of_leaf(getattr(node, "variable", None))
            for name in _saved_names(node):
                self.graph_bytes += self._bytes_saved(node, name)
            todo.extend(following for following, _ in node.next_functions if following is not None)


_SAVED: dict[str, list[str]] = {}


def _saved_names(node: Any) -> list[str]:
    kind = node.name()
    names = _SAVED.get(kind)
    if names is None:
        names = _SAVED[kind] = [name for name in dir(node) if name.startswith("_saved_")]
    return names
