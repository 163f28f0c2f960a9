"""Where a walk from a variable stands, and what each place on its way keeps alive: tensors, and the graphs behind them.

What a node of an autograd graph keeps for the backward pass is read without running any code of the program.
"""

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch._C._autograd import SavedTensor

from efprof.artifacts.holders import Counted
from efprof.recorder.holders.variables import CONTAINERS, base_of
from efprof.recorder.numbers.step_numbers import feeders_of, saved_names

MAX_GRAPH_NODES = 20_000
"""Per holder; walking them takes about 50 ms."""

CALLS_PER_CHECK = 16

NUM_LOOKED_AT = 4
"""Of the last entries, whose types are told where they are alike."""

MAX_PARTS = 8

_MAXLEN: Any = vars(deque)["maxlen"]
"""Read past the attributes of the user's own subclasses, which may run his code."""

Key = tuple[str, str]

Storage = tuple[int, int]

Node = tuple[tuple[Storage, ...], tuple[Any, ...]]
"""The storages that a node keeps, and the nodes that it leads to."""

_OF_LEAVES = 2**64 - 1
"""The number of nodes that are no operation's, but add up a leaf's gradient."""
_SAVED = "_raw_saved_"
"""To read `_saved_self` instead would call the program's function that unpacks it: a checkpoint's runs the forward pass
once more."""


class TimeLimitReached(Exception):
    """Ends a walk from wherever it stands."""


@dataclass(slots=True)
class TimeLimit:
    """When the walk of a variable, or of a graph, has to end.

    By the time that the thread has computed: on a busy machine a count is to come as far as the one before it.
    """

    limit: float
    _num_calls: int = 0

    def check(self) -> None:
        """Now and then: between things that are small, to ask for the time, a microsecond, takes as long as they do."""
        if self._num_calls % CALLS_PER_CHECK == 0 and time.thread_time() > self.limit:
            raise TimeLimitReached
        self._num_calls += 1


class Place(NamedTuple):
    """Where a walk stands: the names that led there; `within` is the namespace, frame, cell or object of `name`.

    `inside` is what counts the element of a container that stands there.
    """

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    depth: int = 0
    within: Any = None
    inside: "Held | None" = None

    def below(self) -> "Place":
        return self._replace(depth=self.depth + 1)


class Held:
    """What one variable, attribute or container holds, and by what it can be looked at again.

    `containers` are those that were counted for it; `names` have a namespace, frame, cell or object each, and the name
    in it. The file of `counted` is still the path of the user's code.
    """

    def __init__(self, place: Place, value: Any) -> None:
        self.counted = Counted(
            path=place.path,
            scope=place.scope,
            owner=place.owner,
            name=place.name,
            file=place.file,
            type=type(value).__name__,
        )
        self.containers: list[Any] = []
        self.names: list[tuple[Any, str]] = []
        self.roots: list[Any] = []
        """The nodes that its tensors come from, as long as their graphs are not counted."""
        self._storages = set[int]()
        self._views = set[tuple[int, int, int]]()
        self._nodes = set[Any]()

    def meet(self, place: Place, value: Any) -> None:
        """The walk has come to a tensor, or a container, of this path, which has so many elements more."""
        counted, limit = self.counted, max_length_of(value)
        is_first = not counted.length and not self.containers
        counted.max_length = limit if is_first else counted.max_length + limit if counted.max_length and limit else 0
        counted.number = None
        if issubclass(type(value), CONTAINERS):
            counted.length += base_of(value).__len__(value)
            counted.number = id(value) if is_first else None
            self.containers.append(value)
            entry = entry_of(value)
            counted.entry = entry if is_first or counted.entry == entry else []
        else:
            counted.length += 1
        if place.within is not None:
            self.names.append(place.within if type(place.within) is tuple else (place.within, place.name))

    def add(self, tensors: list[torch.Tensor]) -> None:
        counted = self.counted
        counted.tensors += len(tensors)
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None:
                counted.tensor_bytes += self._bytes_of(*storage)
                view = (storage[0], int(tensor.storage_offset()), tensor.nbytes)
                if view not in self._views:
                    self._views.add(view)
                    counted.value_bytes += min(tensor.nbytes, storage[1])
            try:
                root = tensor.grad_fn
            except RuntimeError:  # of a view that was made without gradients, and its base written to
                continue
            if root is not None:
                self.roots.append(root)

    def add_graphs(self, known: dict[Any, Node], time_limit: TimeLimit) -> None:
        """Count the graphs behind the tensors added since; raises TimeLimitReached where that takes too long."""
        time_limit.check()
        todo, self.roots = self.roots[::-1], []
        while todo and len(self._nodes) < MAX_GRAPH_NODES:
            node = todo.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            self.counted.graph_nodes = len(self._nodes)
            time_limit.check()
            storages, following = read_node(node, known)
            for storage in storages:
                self.counted.graph_bytes += self._bytes_of(*storage)
            todo.extend(following)
        numbers = [node._sequence_nr() for node in self._nodes if hasattr(node, "_sequence_nr")]
        made = [number for number in numbers if number < _OF_LEAVES]
        self.counted.graph_span = (min(made), max(made)) if made else None

    def forget(self) -> None:
        for kept in (self.roots, self._nodes, self._storages, self._views):
            kept.clear()

    def _bytes_of(self, address: int, num_bytes: int) -> int:
        if address in self._storages:
            return 0
        self._storages.add(address)
        return num_bytes


def read_node(node: Any, known: dict[Any, Node]) -> Node:
    """Each node once: many tensors have a graph in common."""
    if node not in known:
        known[node] = (storages_of(node), tuple(feeders_of(node)))
    return known[node]


def max_length_of(value: Any) -> int:
    return (_MAXLEN.__get__(value) or 0) if issubclass(type(value), deque) else 0


def last_of(container: Any, number: int) -> list[Any]:
    """So many entries of a list, tuple or deque, the last first; of a dict its items, of a set any."""
    base = base_of(container)
    if base is dict:
        return list(islice(reversed(dict.items(container)), number))
    if base in (set, frozenset):
        return list(islice(base.__iter__(container), number))
    if base is deque:
        return list(islice(deque.__reversed__(container), number))
    return list(base.__getitem__(container, slice(-number, None)))[::-1]  # at once: another thread may be adding to it


def entry_of(container: Any) -> list[str]:
    """The type of the last entries, and those of what they have; empty where these differ."""
    last = last_of(container, NUM_LOOKED_AT)
    found = [_types_in(one[1] if issubclass(type(container), dict) else one) for one in last]
    return found[0] if found and all(types == found[0] for types in found) else []


def _types_in(entry: Any) -> list[str]:
    kind = type(entry)
    parts: Any = ()
    if issubclass(kind, (tuple, list)):
        parts = (tuple if issubclass(kind, tuple) else list).__iter__(entry)
    elif issubclass(kind, dict):
        parts = dict.values(entry)
    return [kind.__name__, *(type(part).__name__ for part in islice(parts, MAX_PARTS + 1))]


def storage_of(tensor: torch.Tensor) -> Storage | None:
    """None of one that has no storage of its own: a sparse one, one without data, what `torch.func` puts around one."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return None
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except RuntimeError:  # or of a kind derived from it: nothing tells beforehand
        return None


def storages_of(node: Any) -> tuple[Storage, ...]:
    kept = _leaf_and_gradient(getattr(node, "variable", None))
    for name in saved_names(node, _SAVED):
        kept += _saved(node, name)
    return tuple([storage for one in kept if (storage := storage_of(one)) is not None]) if kept else ()


def _saved(node: Any, name: str) -> list[torch.Tensor]:
    """What was saved, or what a hook of the program packed it into; nothing where a backward pass has freed it."""
    try:
        saved = getattr(node, name)
        if type(saved) is SavedTensor:
            return _tensors_in(saved)
        return [tensor for one in saved for tensor in _tensors_in(one)]
    except RuntimeError:  # a list of them that is freed; a hook of C++
        return []


def _tensors_in(saved: SavedTensor) -> list[torch.Tensor]:
    data: Any = getattr(saved, "data", None)  # an older torch does not tell it without calling the program's function
    parts = data if type(data) in (list, tuple) else [data]
    return [one for one in parts if isinstance(one, torch.Tensor)]


def _leaf_and_gradient(leaf: Any) -> list[torch.Tensor]:
    """An input that needs a gradient, and that gradient, live as long as the graph; parameters live anyway."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
        return []
    return [leaf] if leaf.grad is None else [leaf, leaf.grad]
