"""Tells of many objects at once that no tensor is behind them, as of the samples of a data set in memory."""

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any

from efprof.recorder.held import Clock
from efprof.recorder.variables import FEW, PLAIN

CHUNK = 1000
"""Elements of a container that are told apart at once; to visit them takes a millisecond."""

MAX_LAYERS = 5
"""Containers and records within one another; what goes deeper is visited one by one."""

MAX_OBJECTS = 100_000
"""In one layer, all of which are in a list at a time: a few megabytes, some milliseconds."""

_CONTAINERS: frozenset[type[Any]] = frozenset({list, tuple, dict, set, frozenset})


def parts_to_visit(elements: list[Any], is_record: Callable[[type[Any]], bool], clock: Clock) -> Iterator[slice]:
    """Those in which there may be a tensor; raises TimeIsUp."""
    for start in range(0, len(elements), CHUNK):
        clock.check()
        part = slice(start, start + CHUNK)
        if len(elements) <= FEW or not is_plain_data(elements[part], is_record):
            yield part


def is_plain_data(elements: Sequence[Any], is_record: Callable[[type[Any]], bool]) -> bool:
    """Whether there are but numbers and texts in all these elements, which may be containers, or records.

    The collector's own function goes through a layer of objects, fifty times as fast as a loop does. `is_record` tells
    of a type whether all that its objects hold is what the collector sees.
    """
    layer: Sequence[Any] = elements
    for _ in range(MAX_LAYERS):
        kinds = set(map(type, layer)) - PLAIN
        records = kinds - _CONTAINERS
        if not kinds or not all(map(is_record, records)):
            return not kinds
        containers = compress(layer, map(_CONTAINERS.__contains__, map(type, layer)))
        if sum(map(len, containers)) > MAX_OBJECTS:
            return False
        layer = gc.get_referents(*layer)
        if records:  # an object refers to its class
            layer = [one for one in layer if not (type(one) is type and one in records)]
    return False
