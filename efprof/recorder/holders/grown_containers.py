"""Which lists, dicts, sets and deques that a count comes to are longer than at the last one, whatever they contain."""

import gc
import sys
from collections import deque
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from efprof.artifacts.holders import Container
from efprof.recorder.holders.paths import Place, last_of, max_length_of, storage_of
from efprof.recorder.holders.variables import base_of
from efprof.recorder.session.sites import Sites

MIN_GROWTH = 2
"""Entries since the last count, twenty steps or more ago: what grows by one may have been filled in late."""

MAX_REFERENCES = 3
"""From a container to a tensor in it; more lead to whatever an object knows of."""

NUM_SAMPLED = 8
"""Of the last entries, whose size is taken for that of each."""

MAX_OBJECTS = 500

MAX_LISTED = 100
"""Containers in one file, those that grew most."""

_GROW = (list, dict, set, deque)

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType, torch.nn.Module)
"""What an entry refers to and does not keep for itself."""


@dataclass(kw_only=True, slots=True)
class Grown:
    """One of them, with where the count met it."""

    value: Any
    length: int
    length_before: int
    place: Place


class GrownContainers:
    """Compares lengths with those at the last count; between two it keeps plain numbers alone.

    Have the count call `note_container`, `finish`, ask for what is `listed` or has `grown`, and `release`.
    """

    def __init__(self) -> None:
        self.grown: dict[int, Grown] = {}
        self._listed = set[int]()
        self._before: dict[int, int] = {}
        self._now: dict[int, int] = {}
        """Lengths by `id` and path: another object may lie where one lay before, though hardly of the same path."""

    def note_container(self, value: Any, place: Place) -> None:
        """The count came to this container."""
        if not issubclass(type(value), _GROW):
            return
        key, length = hash((id(value), place.path)), base_of(value).__len__(value)
        before = self._before.get(key)
        self._now[key] = length
        if before is not None and (length >= before + MIN_GROWTH or key in self._listed):
            self._listed.add(key)
            self.grown[id(value)] = Grown(value=value, length=length, length_before=before, place=place)

    def finish(self) -> None:
        """Leave out those in a container that grew itself: new entries, which may lie where shorter ones lay.

        Figures that pyplot has open are in a table that no variable of the program's leads to.
        """
        helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
        table = getattr(getattr(helpers, "Gcf", None), "figs", None)
        if isinstance(table, dict):
            name = "matplotlib.pyplot.get_fignums"
            self.note_container(table, Place(name, "global", "matplotlib.pyplot", "get_fignums", None))
        outer = {one.place.path for one in self.grown.values() if one.place.inside is None}
        inner = [key for key, one in self.grown.items() if one.place.inside is not None and one.place.path in outer]
        for key in inner:
            del self.grown[key]

    def listed(self, sites: Sites) -> list[Container]:
        """Those that grew most, as a count has them."""
        largest = sorted(self.grown.values(), key=lambda one: one.length_before - one.length)
        return [_container(grown, sites) for grown in largest[:MAX_LISTED]]

    def release(self) -> None:
        self._listed &= self._now.keys()
        self.grown, self._before, self._now = {}, self._now, {}


def _container(grown: Grown, sites: Sites) -> Container:
    value, place = grown.value, grown.place
    sample = last_of(value, NUM_SAMPLED)
    num_bytes, holds_tensors = _contents_of(sample)
    return Container(
        number=id(value),
        type=type(value).__name__,
        length=grown.length,
        length_before=grown.length_before,
        max_length=max_length_of(value),
        holds_tensors=holds_tensors,
        entry_bytes=num_bytes // max(1, len(sample)),
        path=place.path,
        scope=place.scope,
        owner=place.owner,
        file=place.file and sites.file(place.file),
    )


def _contents_of(sample: list[Any]) -> tuple[int, bool]:
    """What these take, each object once, without tensors and what is not theirs alone; and whether they have tensors.

    Of many objects by a part of them.
    """
    seen = set[int]()
    total, each, holds_tensors, layer = 0.0, 1.0, False, list(sample)
    for _ in range(MAX_REFERENCES + 1):
        layer = [one for one in layer if not issubclass(type(one), _SHARED)]
        holds_tensors = holds_tensors or any(issubclass(type(one), torch.Tensor) for one in layer)
        own = {id(one): one for one in layer if id(one) not in seen and not issubclass(type(one), torch.Tensor)}
        each *= max(1.0, len(own) / MAX_OBJECTS)
        layer = list(own.values())[:MAX_OBJECTS]
        seen.update(map(id, layer))
        total += each * sum(_size_of(one, seen) for one in layer)
        layer = gc.get_referents(*layer)
    return round(total), holds_tensors


def _size_of(value: Any, seen: set[int]) -> int:
    """Of one object; of an array as `tensor.numpy()` gives it also of the tensor's memory, if no other lies in that.

    What a class of the program's says of its own size would be code of the program's.
    """
    is_own = type(type(value).__sizeof__) is FunctionType
    size = object.__sizeof__(value) if is_own else sys.getsizeof(value)
    array, base = getattr(sys.modules.get("numpy"), "ndarray", None), value
    while type(base) is array:
        base = base.base
    storage = storage_of(base) if issubclass(type(base), torch.Tensor) else None
    if storage is None or storage[0] in seen:
        return size
    seen.add(storage[0])
    return size + min(int(value.nbytes), storage[1])
