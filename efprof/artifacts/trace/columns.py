"""A trace at rest: one NumPy array for each field of its events, in order of their start, outer before inner."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from efprof.artifacts.trace.blocks import Header
from efprof.artifacts.trace.events import TEXTS, Array, Block, Sparse

Lane = tuple[int | str, int | str]
"""Process (or device) and thread (or stream) of an event, as the file names them."""

COMPLETE = ord("X")
ABSENT = -1


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The events of one file; nothing of it is left out but events that cannot be read.

    `phase` is the character that the format has for it, `name` and `category` are places in `texts`, `lane` one in
    `lanes`, `id` is the correlation of a launch and its kernel, or what ties the ends of a flow together (-1: none).
    `sparse` has, for each argument that any event has, the places of these events, ascending, and its values; those
    of texts are places in `texts`. Times are in nanoseconds on the epoch's clock, or the file's own where it has none.
    """

    path: Path
    header: Header
    texts: list[str]
    lanes: list[Lane]
    num_unreadable: int
    phase: Array
    category: Array
    lane: Array
    id: Array
    start_ns: Array
    duration_ns: Array
    name_code: Array
    sparse: Sparse

    def __len__(self) -> int:
        return len(self.phase)

    @cached_property
    def end_ns(self) -> Array:
        """The first instant after each event."""
        ends: Array = self.start_ns + self.duration_ns
        return ends

    def is_of(self, *categories: str) -> Array:
        """Which events are complete ones of these categories, however a file of any year spells them."""
        wanted = {name.lower() for name in categories}
        codes = [code for code, text in enumerate(self.texts) if text.lower() in wanted]
        found: Array = (self.phase == COMPLETE) & np.isin(self.category, codes)
        return found

    def overlaps(self, start_ns: int, end_ns: int) -> Array:
        """Which events have a part between two instants."""
        found: Array = (self.start_ns < end_ns) & (self.end_ns > start_ns)
        return found

    def matches(self, pattern: re.Pattern[str]) -> Array:
        """Which events have a name that the pattern is found in."""
        found: Array = np.array([bool(pattern.search(text)) for text in self.texts], bool)[self.name_code]
        return found

    def text(self, event: int) -> str:
        """The event's name."""
        return self.texts[int(self.name_code[event])]

    def span(self, event: int) -> tuple[int, int]:
        """When the event begins and ends."""
        return int(self.start_ns[event]), int(self.end_ns[event])

    def argument(self, name: str) -> Array:
        """The argument of every event as an array, ABSENT where an event has none."""
        values = np.full(len(self), ABSENT, np.int64)
        if name in self.sparse:
            places, found = self.sparse[name]
            values[places] = found
        return values

    def input_shapes(self, event: int) -> tuple[tuple[int, ...], ...]:
        """Of each of an operator's inputs; of a list of tensors that of its first one; empty where none is recorded."""
        found = msgspec.json.decode(self.argument_text("shapes", event) or "[]")
        return tuple(map(_sizes, found)) if isinstance(found, list) else ()

    def argument_text(self, name: str, event: int) -> str:
        """One event's argument that is a text; empty where it has none."""
        places, codes = self.sparse.get(name, (np.empty(0, np.int32),) * 2)
        at = int(places.searchsorted(places.dtype.type(event)))  # another type's number makes it copy them all
        return self.texts[codes[at]] if at < len(places) and places[at] == event else ""

    def moved_to(self, start_ns: Array, end_ns: Array) -> "Trace":
        """The same events at other times, in order of these."""
        order, duration_ns = _order(start_ns, end_ns - start_ns), end_ns - start_ns
        dense = {name: getattr(self, name) for name in DENSE} | {"start_ns": start_ns, "duration_ns": duration_ns}
        dense = {name: column[order] for name, column in dense.items()}
        return replace(self, sparse=_reordered(self.sparse, order), **dense)


DENSE = ("phase", "category", "lane", "id", "start_ns", "duration_ns", "name_code")


class Columns:
    """Puts blocks together; `ordered` gives the columns of all of them, sorted."""

    def __init__(self) -> None:
        self.num_unreadable = 0
        self.texts: dict[str, int] = {}
        self.lanes: dict[Lane, int] = {}
        self._dense: dict[str, list[Array]] = {name: [] for name in DENSE}
        self._sparse: dict[str, list[tuple[Array, Array]]] = {}
        self._num_events = 0

    def add(self, block: Block) -> None:
        """Take a block's columns over, with one number for each text and lane of the file."""
        texts, lanes = _places(self.texts, block.texts), _places(self.lanes, block.lanes)
        codes = {"name": texts, "category": texts, "lane": lanes}
        for name, values in block.dense.items():
            column = codes[name][values] if name in codes else values
            self._dense["name_code" if name == "name" else name].append(column)
        for name, (places, values) in block.sparse.items():
            values = texts[values] if name in TEXTS else values
            self._sparse.setdefault(name, []).append(((places + self._num_events).astype(np.int32), values))
        self._num_events += len(block.dense["phase"])
        self.num_unreadable += block.num_unreadable

    def ordered(self, base_ns: int, num_threads: int = 1) -> tuple[dict[str, Array], Sparse]:
        """The dense and the sparse columns, of which the blocks' own are given up; NumPy sorts in several threads."""
        dense = {name: _joined(self._dense.pop(name)) for name in ("start_ns", "duration_ns")}
        order = _order(dense["start_ns"], dense["duration_ns"])

        def joined(names: Sequence[str]) -> dict[str, Array]:
            # Memory costs most when it is used for the first time: all columns of a thread are joined in the same.
            shared = np.empty(self._num_events, np.int64)
            return {name: _joined(self._dense.pop(name), shared)[order] for name in names}

        names = list(self._dense)
        with ThreadPoolExecutor(num_threads) as threads:
            dense = {name: column[order] for name, column in dense.items()}
            for some in threads.map(joined, [names[first::num_threads] for first in range(num_threads)]):
                dense |= some
        dense["start_ns"] += base_ns
        sparse = {}
        for name in list(self._sparse):
            places, values = zip(*self._sparse.pop(name), strict=True)
            sparse[name] = _joined(places), _joined(values)
        return dense, _reordered(sparse, order)


def _sizes(found: Any) -> tuple[int, ...]:
    """Of one input; anything may stand in a file."""
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], list) else found
    return tuple(size for size in first if isinstance(size, int)) if isinstance(first, list) else ()


def _order(starts: Array, durations: Array) -> Array:
    """By start, of equal ones the longest first, else as in the file: few of them do not lie so there already."""
    order = np.argsort(starts, kind="stable").astype(np.int32)
    sorted_starts, sorted_durations = starts[order], durations[order]
    is_next = sorted_starts[1:] != sorted_starts[:-1]
    group = np.cumsum(np.append(False, is_next), dtype=np.int32)
    is_mixed = np.zeros(len(starts) + 1, bool)
    is_mixed[group[1:][~is_next & (sorted_durations[1:] > sorted_durations[:-1])]] = True
    some = order[places := np.flatnonzero(is_mixed[group])]
    order[places] = some[np.lexsort((-durations[some], starts[some]))]
    return order


def _reordered(sparse: Sparse, order: Array) -> Sparse:
    """The same values at the places that `order` gives their events."""
    new_places = np.empty(len(order), np.int32)
    new_places[order] = np.arange(len(order), dtype=np.int32)
    found = {}
    for name, (places, values) in sparse.items():
        by_place = np.argsort(new_places[places], kind="stable")
        found[name] = new_places[places][by_place], values[by_place]
    return found


def _joined(parts: Sequence[Array], memory: Array | None = None) -> Array:
    """One array of them, in the memory where it is given: as many numbers as they have, of eight bytes each."""
    if memory is not None and len(memory):
        memory = memory.view(parts[0].dtype)[: len(memory)]
        return np.concatenate(parts, out=memory)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _places(known: dict[Any, int], values: Iterable[Any]) -> Array:
    return np.array([known.setdefault(value, len(known)) for value in values], np.int32)
