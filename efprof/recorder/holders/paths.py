"""Where a walk from a variable stands, and what each place on its way keeps alive: tensors, and the graphs behind them.

What a node of an autograd graph keeps for the backward pass is read without running any code of the program.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch._C._autograd import SavedTensor

from efprof.recorder.holders.variables import CONTAINERS, base_of

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

_Node = tuple[tuple[Storage, ...], tuple[Any, ...]]
"""The storages that a node keeps, and the nodes that it leads to."""

_LEAF = "variable"
_SAVED = "_raw_saved_"
"""To read `_saved_self` instead would call the program's function that unpacks it: a checkpoint's runs the forward pass
once more."""

_names: dict[str, tuple[str, ...]] = {}
"""By the name of a kind of node, which attributes of such nodes keep tensors."""


class Nodes:
    """Remembers every node that was read, since many tensors have a graph in common."""

    def __init__(self) -> None:
        self._known: dict[Any, _Node] = {}

    def of(self, node: Any) -> _Node:
        known = self._known.get(node)
        if known is None:
            following = tuple([one for one, _ in node.next_functions if one is not None])
            known = self._known[node] = (_storages_of(node), following)
        return known

    def forget(self) -> None:
        self._known.clear()


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
        if time.thread_time() > self.limit:
            raise TimeLimitReached

    def check_sometimes(self) -> None:
        """The same between things so small that to ask for the time, a microsecond, takes as long: now and then."""
        if self._num_calls % CALLS_PER_CHECK == 0:
            self.check()
        self._num_calls += 1


class Place(NamedTuple):
    """Where a walk stands: the names that led there; `within` is the namespace, frame, cell or object of `name`."""

    path: str
    scope: str
    owner: str
    name: str
    file: str | None
    depth: int = 0
    within: Any = None

    def nested(self) -> "Place":
        """One layer below, of the same name; `_replace` takes four times as long."""
        path, scope, owner, name, file, depth, within = self
        return Place(path, scope, owner, name, file, depth + 1, within)

    def entry(self, key: str, entries: Any) -> "Place":
        path, scope, owner, name, file, depth, _ = self
        return Place(f"{path}[{key!r}]", scope, owner, name, file, depth + 1, (entries, key))


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
        self.tensors += len(tensors)
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None:
                self.tensor_bytes += self._bytes_of(*storage)
                view = (storage[0], int(tensor.storage_offset()), tensor.nbytes)
                if view not in self._views:
                    self._views.add(view)
                    self.value_bytes += min(tensor.nbytes, storage[1])
            root = _root_of(tensor)
            if root is not None:
                self.roots.append(root)

    def add_graphs(self, known: Nodes, time_limit: TimeLimit) -> None:
        """Count the graphs behind the tensors added since; raises TimeLimitReached where that takes too long."""
        time_limit.check()
        todo, self.roots = self.roots[::-1], []
        while todo and len(self._nodes) < MAX_GRAPH_NODES:
            node = todo.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            self.graph_nodes = len(self._nodes)
            time_limit.check_sometimes()
            storages, following = known.of(node)
            for storage in storages:
                self.graph_bytes += self._bytes_of(*storage)
            todo.extend(following)

    def forget(self) -> None:
        self.roots.clear()
        self._nodes.clear()
        self._storages.clear()
        self._views.clear()

    def _bytes_of(self, address: int, num_bytes: int) -> int:
        if address in self._storages:
            return 0
        self._storages.add(address)
        return num_bytes


@dataclass(slots=True)
class Handles:
    """By what a holder can be looked at again: the containers that were counted for it, and what has its name."""

    containers: list[Any] = field(default_factory=list)
    names: list[tuple[Any, str]] = field(default_factory=list)
    """A namespace, frame, cell or object, and the name in it."""


class Holders:
    """What was found, by scope and path; `here` are those that the last variable led to."""

    def __init__(self) -> None:
        self.held: dict[Key, Held] = {}
        self.handles: dict[Key, Handles] = {}
        self.here: set[Key] = set()

    def of(self, place: Place, value: Any) -> Held:
        """What a tensor, or a container, at this place is counted in, which has so many elements more."""
        key = (place.scope, place.path)
        self.here.add(key)
        held = self.held.get(key)
        limit = max_length_of(value)
        if held is not None:
            held.max_length = held.max_length + limit if held.max_length and limit else 0
        else:
            self.handles[key] = Handles()
            held = self.held[key] = Held(
                path=place.path,
                scope=place.scope,
                owner=place.owner,
                name=place.name,
                file=place.file,
                type=type(value).__name__,
                max_length=limit,
            )
        handles = self.handles[key]
        held.num_counted += 1
        if issubclass(type(value), CONTAINERS):
            held.length += len(value)
            handles.containers.append(value)
            entry = entry_of(value)
            held.entry = entry if held.num_counted == 1 or held.entry == entry else []
        else:
            held.length += 1
        if place.within is not None:
            handles.names.append(place.within if type(place.within) is tuple else (place.within, place.name))
        return held


def _root_of(tensor: torch.Tensor) -> Any:
    """The node that it comes from; torch refuses where a view was made without gradients, and its base written to."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


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
    """The type of the last entries, and those of what they have; empty where these differ, and of a set."""
    if issubclass(type(container), (set, frozenset)):
        return []
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


def _storages_of(node: Any) -> tuple[Storage, ...]:
    names = _names.get(node.name())
    if names is None:
        names = tuple(name for name in dir(node) if name.startswith(_SAVED) or name == _LEAF)
        _names[node.name()] = names
    kept: list[Any] = []
    for name in names:
        kept += _leaf_and_gradient(node.variable) if name == _LEAF else _saved(node, name)
    return tuple([storage for one in kept if (storage := storage_of(one)) is not None]) if kept else ()


def _saved(node: Any, name: str) -> list[torch.Tensor]:
    """What was saved, or what a hook of the program packed it into; nothing where a backward pass has freed it."""
    try:
        saved = getattr(node, name)
        if type(saved) is SavedTensor:
            return _tensors_in(_data_of(saved))
        return [tensor for one in saved for tensor in _tensors_in(_data_of(one))]
    except RuntimeError:  # a list of them that is freed; a hook of C++
        return []


def _data_of(saved: SavedTensor) -> Any:
    return getattr(saved, "data", None)  # an older torch does not tell it without calling the program's function


def _tensors_in(data: Any) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        return [data]
    return [one for one in data if isinstance(one, torch.Tensor)] if type(data) in (list, tuple) else []


def _leaf_and_gradient(leaf: Any) -> list[torch.Tensor]:
    """An input that needs a gradient, and that gradient, live as long as the graph; parameters live anyway."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
        return []
    return [leaf] if leaf.grad is None else [leaf, leaf.grad]
