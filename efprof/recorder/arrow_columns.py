"""Columns of a parquet file made from their bytes.

`pyarrow.array` would import pandas for it: a fifth of a second and tens of MiB of the training process, and what that
import evaluates makes Python forget that Ctrl-C ended the program, which then exits with 1 and not as a signal does.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

import pyarrow as pa


def integers(values: Sequence[int]) -> pa.Array:
    """A column of int64."""
    return _of_buffer(pa.int64(), len(values), array("q", values))


def booleans(values: Sequence[bool]) -> pa.Array:
    """A column of truth values, one bit each, the lowest first."""
    bits = bytearray((len(values) + 7) // 8)
    for place, value in enumerate(values):
        bits[place >> 3] |= value << (place & 7)
    return _of_buffer(pa.bool_(), len(values), bits)


def strings(values: Iterable[str]) -> pa.Array:
    """A dictionary-encoded column of strings: each different one is kept once."""
    places: dict[str, int] = {}
    indices = array("i", (places.setdefault(value, len(places)) for value in values))
    encoded = [value.encode() for value in places]
    offsets = array("i", (0, *accumulate(map(len, encoded))))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    dictionary = pa.Array.from_buffers(pa.string(), len(encoded), buffers)
    return pa.DictionaryArray.from_arrays(_of_buffer(pa.int32(), len(indices), indices), dictionary)


def _of_buffer(kind: pa.DataType, length: int, content: "array[int] | bytearray") -> pa.Array:
    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(content)])
