"""The containers and generators among all the objects that Python's garbage collector knows of."""

import gc
from collections import deque
from dataclasses import dataclass
from itertools import compress
from types import GeneratorType
from typing import Any

BASES: tuple[type[Any], ...] = (list, dict, set, deque)

_WANTED: tuple[type[Any], ...] = (*BASES, GeneratorType)


@dataclass(frozen=True, kw_only=True, slots=True)
class Heap:
    """To be let go of soon: it keeps all of them alive."""

    containers: dict[type[Any], list[Any]]
    """By what they are, or are derived from."""
    generators: list[Any]
    young: set[int]
    """By `id`, what no garbage collection has seen yet."""


def look_at_heap() -> Heap:
    """One pass through all objects, most of whose time their types take to be read: 0.1 s with 300,000 (measured)."""
    young = set(map(id, gc.get_objects(generation=0)))
    objects = gc.get_objects()
    kinds = list(map(type, objects))
    wanted = {kind: base for kind in set(kinds) for base in _WANTED if issubclass(kind, base)}
    found = list(compress(objects, map(wanted.__contains__, kinds)))
    by_base: dict[type[Any], list[Any]] = {base: [] for base in _WANTED}
    for one in found:
        by_base[wanted[type(one)]].append(one)
    return Heap(generators=by_base.pop(GeneratorType), containers=by_base, young=young)
