"""Which lists, dicts, sets and deques are longer than at the last count, whatever they contain and whoever has them."""

import gc
import sys
import weakref
from array import array
from collections import deque
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from efprof.artifacts.holders import Container
from efprof.recorder.holders.holder_count import Heap
from efprof.recorder.holders.paths import Held, Place, last_of, max_length_of, storage_of
from efprof.recorder.holders.variables import LRU_CACHE
from efprof.recorder.session.sites import callers

MIN_GROWTH = 2
"""Entries since the last count, twenty steps or more ago: what grows by one may have been filled in late."""

MAX_REFERENCES = 3
"""From a container to a tensor in it; more lead to whatever an object knows of."""

NUM_SAMPLED = 8
"""Of the last entries, whose size is taken for that of each."""

MAX_OBJECTS = 500

MIN_WATCHED_BYTES = 64 * 1024

MAX_LISTED = 100
"""Containers in one file, those that grew most."""

_COUNTING = "efprof.recorder.holders.holders"

_WEAK = (weakref.ref, weakref.KeyedRef)

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType, torch.nn.Module)
"""What an entry refers to and does not keep for itself."""


@dataclass(kw_only=True, slots=True)
class Grown:
    """One of them, with where the count met it and what holder its contents count for, if not its own."""

    value: Any
    length: int
    length_before: int
    place: Place | None = None
    inside: Held | None = None


class GrownContainers:
    """Compares the lengths of all containers with those at the last count; between two it keeps plain numbers alone.

    `look`, have the count call `note_container`, ask for what `grown` has, and `release`.
    """

    def __init__(self, recorder: object) -> None:
        """What the recorder's objects lead to is not the program's."""
        self.grown: dict[int, Grown] = {}
        self._recorder = recorder
        self._ids, self._lengths = array("Q"), array("Q")
        self._listed: set[int] = set()
        self._young: set[int] = set()
        self._before: dict[int, int] = {}
        self._now: dict[int, int] = {}

    def look(self, heap: Heap) -> None:
        self._young = heap.young
        before = self._before = dict(zip(self._ids, self._lengths, strict=True))
        for base, found in heap.containers.items():
            addresses, lengths = list(map(id, found)), list(map(base.__len__, found))
            self._now.update(zip(addresses, lengths, strict=True))
            for one, then, now in zip(found, map(before.get, addresses), lengths, strict=True):
                if then is not None and (now >= then + MIN_GROWTH or id(one) in self._listed):
                    self.grown[id(one)] = Grown(value=one, length=now, length_before=then)
        self._name_figures()
        for module in list(sys.modules.values()):
            self.grown.pop(id(getattr(module, "__dict__", None)), None)  # names that the program has given since

    def note_container(self, value: Any, place: Place, inside: Held | None) -> None:
        """The count came to this container; one with plain contents may be none that the collector knows of."""
        if type(value) is dict and not gc.is_tracked(value):
            length, before = len(value), self._before.get(id(value))
            self._now[id(value)] = length
            if before is not None and (length >= before + MIN_GROWTH or id(value) in self._listed):
                self.grown[id(value)] = Grown(value=value, length=length, length_before=before)
        grown = self.grown.get(id(value))
        if grown is not None and grown.place is None:
            grown.place, grown.inside = place, inside

    def leave_out_others(self) -> None:
        """Forget those without a name that the recorder itself fills, or that lie where another one lay before.

        And those in a container that grew itself: new entries, which may lie where shorter ones lay.
        """
        outer = {one.place.path for one in self.grown.values() if one.place is not None and one.inside is None}
        grown, self.grown = self.grown, {}  # which leads to all of them
        now, self._now, self._before = self._now, {}, {}  # hundreds of thousands of numbers, which lead to nothing
        grown = {
            address: one
            for address, one in grown.items()
            if one.place is None or one.inside is None or one.place.path not in outer
        }
        if any(one.place is None for one in grown.values()):
            modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("efprof.")]
            others = _reachable_from([self._recorder, *modules, *_own_frames(sys._getframe())]) | self._young
            grown = {
                address: one
                for address, one in grown.items()
                if one.place is not None or not (address in others or _is_of_a_library(one.value))
            }
        self.grown, self._now = grown, now

    def _name_figures(self) -> None:
        """Those that pyplot has open are in a table that no variable of the program's leads to."""
        helpers: Any = sys.modules.get("matplotlib._pylab_helpers")
        table = getattr(getattr(helpers, "Gcf", None), "figs", None)
        if isinstance(table, dict):
            self.note_container(
                table, Place("matplotlib.pyplot.get_fignums", "global", "matplotlib.pyplot", "get_fignums", None), None
            )

    def largest(self) -> list[Grown]:
        return sorted(self.grown.values(), key=lambda one: one.length_before - one.length)[:MAX_LISTED]

    def release(self) -> None:
        self._ids, self._lengths = array("Q", self._now.keys()), array("Q", self._now.values())
        self._listed |= self.grown.keys()
        self._listed &= self._now.keys()
        self.grown, self._before, self._now, self._young = {}, {}, {}, set()


def described(grown: Grown, max_length: int | None, file: str | None) -> Container:
    """As a count has it; `max_length` and `file` as far as the holder or its place tells."""
    value, place = grown.value, grown.place
    sample = last_of(value, NUM_SAMPLED)
    tensors = _tensors_in(sample)
    return Container(
        number=id(value),
        type=type(value).__name__,
        length=grown.length,
        length_before=grown.length_before,
        max_length=max_length_of(value) if max_length is None else max_length,
        holds_tensors=bool(tensors),
        entry_bytes=_bytes_of(sample) // max(1, len(sample)),
        tensor_bytes=sum(dict(filter(None, map(storage_of, tensors))).values()) // max(1, len(sample)),
        path=place and place.path,
        scope=place and place.scope,
        owner=place and place.owner,
        file=file,
    )


def is_worth_watching(grown: Grown) -> bool:
    """Whether what was added to it is worth a watch, though nobody knows a name for it: tensors, or much else."""
    sample = last_of(grown.value, NUM_SAMPLED)
    added = (grown.length - grown.length_before) * _bytes_of(sample) // max(1, len(sample))
    return added >= MIN_WATCHED_BYTES or bool(_tensors_in(sample))


def _tensors_in(sample: list[Any]) -> list[torch.Tensor]:
    layer: list[Any] = list(sample)
    for _ in range(MAX_REFERENCES):
        tensors = [one for one in layer if issubclass(type(one), torch.Tensor)]
        if tensors:
            return tensors
        layer = [one for one in gc.get_referents(*layer[:MAX_OBJECTS]) if not issubclass(type(one), _SHARED)]
    return [one for one in layer if issubclass(type(one), torch.Tensor)]


def _bytes_of(sample: list[Any]) -> int:
    """What these take, each object once, without tensors and what is not theirs alone; of many objects by a part."""
    seen: set[int] = set()
    total, each, layer = 0.0, 1.0, list(sample)
    for _ in range(MAX_REFERENCES + 1):
        layer = [one for one in layer if not issubclass(type(one), (*_SHARED, torch.Tensor))]
        layer = list({id(one): one for one in layer if id(one) not in seen}.values())
        each *= max(1.0, len(layer) / MAX_OBJECTS)
        layer = layer[:MAX_OBJECTS]
        seen.update(map(id, layer))
        total += each * sum(map(_size_of, layer))
        layer = gc.get_referents(*layer)
    return round(total)


def _size_of(value: Any) -> int:
    """Of one object; what a class of the program's says of its own size would be code of the program's."""
    is_own = type(type(value).__sizeof__) is FunctionType
    return object.__sizeof__(value) if is_own else sys.getsizeof(value)


def _reachable_from(roots: list[Any]) -> set[int]:
    """What the recorder's objects lead to by way of its own objects, containers and functions."""
    seen: set[int] = set()
    layer = roots
    while layer:
        seen.update(map(id, layer))
        layer = list(
            {id(one): one for one in gc.get_referents(*layer) if id(one) not in seen and _is_ours(one)}.values()
        )
    return seen


def _is_of_a_library(container: Any) -> bool:
    """Whether it is of a type of its own, or has only weak references in it, as the caches of abstract classes do."""
    if type(container).__module__ not in ("builtins", "collections"):
        return True
    sample = last_of(container, NUM_SAMPLED)
    if issubclass(type(container), dict):
        return all(any(type(one) in _WEAK for one in pair) for pair in sample)
    return all(type(one) in _WEAK for one in sample)


def _own_frames(innermost: FrameType) -> list[FrameType]:
    """The recorder's functions that run, except those that have what was counted in their variables.

    Not its own frame: in its own list that would keep all that called it, and a loader's workers, until a collection.
    """
    names = [(frame, frame.f_globals.get("__name__", "")) for frame in callers(innermost)]
    return [frame for frame, name in names if name.startswith("efprof.") and name not in (__name__, _COUNTING)]


def _is_ours(value: Any) -> bool:
    kind = type(value)
    if kind in (list, dict, set, deque, tuple, CellType, MethodType, partial):
        return True
    owner = value if kind in (FunctionType, LRU_CACHE) else kind
    return str(getattr(owner, "__module__", "")).startswith("efprof.")
