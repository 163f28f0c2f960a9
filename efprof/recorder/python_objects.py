"""Estimates, from a bounded sample, what an object holds in Python objects."""

import sys
from collections import Counter, deque
from itertools import chain, islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from efprof.artifacts.worker_memory import HeldContainer
from efprof.recorder.variables import COLLECTIONS, PLAIN, attributes_of, is_array

PAGE_BYTES: Final = 4096
"""Reading an object writes its reference count, which copies the page that it lies in, not the text behind it."""

NUM_SAMPLED: Final = 256
"""Entries of a container; of one within it 64, then 16."""

MAX_VISITED: Final = 20_000
"""Objects in all: about 20 ms (measured)."""

MAX_DEPTH: Final = 5
LEAST_BYTES: Final = 1 << 20
LEAST_LENGTH: Final = 100
"""Of a container that is told of; of a smaller one the entries are looked at, as the parts of a ConcatDataset."""
MAX_LISTED: Final = 5

NOT_HELD: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, CodeType)
"""The program's code, which is not the data set's."""


class Look:
    """One look at one object; each object behind it counts where it is met first."""

    def __init__(self) -> None:
        self._num_visited = 0
        self._seen: set[int] = set()

    def at(self, owner: Any) -> list[tuple[HeldContainer, Any, str]]:
        """The containers that its attributes hold, and those of the objects in these, most bytes first.

        With each stand the object whose attribute leads to it, and the attribute's name.
        """
        found: list[tuple[HeldContainer, Any, str]] = []
        waiting: deque[tuple[Any, str, Any, str, int]] = deque([(owner, type(owner).__name__, owner, "", 0)])
        while waiting and self._num_visited < MAX_VISITED:
            value, path, holder, name, depth = waiting.popleft()
            if isinstance(value, NOT_HELD) or id(value) in self._seen:
                continue
            entries = _entries(value, NUM_SAMPLED)
            if entries is not None and entries[1] >= LEAST_LENGTH:
                before = set(self._seen)
                num_bytes = round(self._bytes_of(value, NUM_SAMPLED))
                if num_bytes >= LEAST_BYTES:
                    found.append((_described(value, path, entries, num_bytes), holder, name))
                    continue
                self._seen = before  # its entries are looked at one by one
            self._seen.add(id(value))
            if depth == MAX_DEPTH:
                continue
            if entries is not None:
                waiting.extend((one, f"{path}[...]", holder, name, depth + 1) for one in entries[0])
            else:
                kind = type(value).__name__
                waiting.extend((one, f"{kind}.{of}", value, of, depth + 1) for of, one in _attributes(value))
        return sorted(found, key=lambda one: -one[0].object_bytes)[:MAX_LISTED]

    def _bytes_of(self, value: Any, num_sampled: int) -> float:
        """Of the object and all that it holds; of a long container as far as a sample tells."""
        if id(value) in self._seen or isinstance(value, NOT_HELD) or self._num_visited >= MAX_VISITED:
            return 0.0
        self._seen.add(id(value))
        self._num_visited += 1
        entries = _entries(value, num_sampled)
        sample = [one for _, one in _attributes(value)] if entries is None else entries[0]
        distinct = list({id(one): one for one in sample}.values())
        # Labels are a few objects met again and again; texts are as many objects as there are entries.
        are_few = entries is None or len(distinct) <= len(sample) / 2
        held = sum(self._bytes_of(one, max(4, num_sampled // 4)) for one in distinct)
        own = min(PAGE_BYTES, (sys.getsizeof(value, 0) + 15) // 16 * 16)
        return own + (held if are_few or entries is None else held * entries[1] / min(entries[1], num_sampled))


def _described(value: Any, path: str, entries: tuple[list[Any], int], num_bytes: int) -> HeldContainer:
    sample, length = entries
    values = sample[1::2] if isinstance(value, dict) else sample
    kind = Counter(type(one).__name__ for one in values).most_common(1)[0][0]
    return HeldContainer(path=path, type=type(value).__name__, element_type=kind, length=length, object_bytes=num_bytes)


def _entries(value: Any, number: int) -> tuple[list[Any], int] | None:
    """So many entries of a container and its length, by the methods of its built-in type; None where it is none.

    Those of a list are evenly spaced; of a dict each key comes before its value.
    """
    kind: Any = next((kind for kind in (*COLLECTIONS, dict) if isinstance(value, kind)), None)
    if kind is not None:
        length = kind.__len__(value)
        if kind is dict:
            return list(chain.from_iterable(islice(dict.items(value), number))), length
        if kind in (list, tuple):
            return list(kind.__getitem__(value, slice(None, None, max(1, length // number))))[:number], length
        return list(islice(kind.__iter__(value), number)), length
    if is_array(type(value)) and value.dtype == object:
        return value.reshape(-1)[:: max(1, value.size // number)][:number].tolist(), value.size
    return None


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """What an object has of its own; of a table of pandas the columns of objects."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and type(value) is pandas.DataFrame:
        return [(str(name), column.to_numpy()) for name, column in value.items() if column.dtype == object]
    return [] if type(value) in PLAIN else attributes_of(value)
