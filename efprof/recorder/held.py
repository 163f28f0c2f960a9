"""What one of the user's variables keeps alive: tensors, their storages, and the autograd graphs behind them."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from efprof.recorder.saved_tensors import Nodes, storage_of

MAX_GRAPH_NODES = 20_000
"""Per holder; walking them takes about 50 ms."""

GLANCES_PER_CHECK = 16


class TimeIsUp(Exception):
    """Ends a walk from wherever it stands."""


@dataclass(slots=True)
class Clock:
    """When the walk of a variable, or of a graph, has to end.

    By the time that the thread has computed: on a busy machine a count is to come as far as the one before it.
    """

    limit: float
    _num_glances: int = 0

    def check(self) -> None:
        """Raises TimeIsUp."""
        if time.thread_time() > self.limit:
            raise TimeIsUp

    def glance(self) -> None:
        """The same between things so small that to ask for the time, a microsecond, takes as long: now and then."""
        if self._num_glances % GLANCES_PER_CHECK == 0:
            self.check()
        self._num_glances += 1


@dataclass(kw_only=True, slots=True)
class Held:
    """What one variable, attribute or container holds, counted once; `file` is the path of its user's code."""

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    type: str
    num_counted: int = 0
    """Tensors and containers of this path, each with its length."""
    length: int = 0
    max_length: int = 0
    """Of a deque or a cache; 0 where there is none."""
    entry: list[str] = field(default_factory=list)
    """The types of its last entries and of what these have; empty where they are not alike."""
    tensors: int = 0
    tensor_bytes: int = 0
    value_bytes: int = 0
    """What its tensors take of their storages, the same numbers counted once."""
    graph_nodes: int = 0
    graph_bytes: int = 0
    roots: list[Any] = field(default_factory=list)
    """The nodes that its tensors come from, as long as their graphs are not counted."""
    _storages: set[int] = field(default_factory=set)
    _views: set[tuple[int, int, int]] = field(default_factory=set)
    _nodes: set[Any] = field(default_factory=set)

    def add(self, tensors: list[torch.Tensor]) -> None:
        """Count these, and the storage of each once."""
        self.tensors += len(tensors)
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None:
                self.tensor_bytes += self._bytes_of(*storage)
                view = (storage[0], int(tensor.storage_offset()), tensor.nbytes)
                if view not in self._views:
                    self._views.add(view)
                    self.value_bytes += min(tensor.nbytes, storage[1])
            root = tensor.grad_fn
            if root is not None:
                self.roots.append(root)

    def add_graphs(self, known: Nodes, clock: Clock) -> None:
        """Count the graphs behind the tensors added since; raises TimeIsUp where that takes too long."""
        clock.check()
        todo, self.roots = self.roots[::-1], []
        while todo and len(self._nodes) < MAX_GRAPH_NODES:
            node = todo.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            self.graph_nodes = len(self._nodes)
            clock.glance()
            storages, following = known.of(node)
            for storage in storages:
                self.graph_bytes += self._bytes_of(*storage)
            todo.extend(following)

    def forget(self) -> None:
        """Let go of the graphs: a census must keep nothing alive."""
        self.roots.clear()
        self._nodes.clear()
        self._storages.clear()
        self._views.clear()

    def _bytes_of(self, address: int, num_bytes: int) -> int:
        if address in self._storages:
            return 0
        self._storages.add(address)
        return num_bytes
