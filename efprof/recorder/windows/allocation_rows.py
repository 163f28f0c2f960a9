"""A profiler window's allocations, each with the Python stack and the operation it came from, and its calls' lines."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from efprof.artifacts.allocations import ALLOCATION_COLUMNS, SEPARATOR
from efprof.artifacts.trace.read import SITE_COLUMNS
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import written_whole

EVALUATE = "autograd::engine::evaluate_function: "
"""How the autograd engine names its call of one node."""

NAMELESS = "?:0:?"


@dataclass(slots=True, eq=False)
class _Context:
    """One enclosing event; `around` is what encloses it. Stacks are put together only where they are asked for."""

    around: "_Context | None" = None
    site: str = ""
    module: str = ""
    operation: str = ""
    sequence: int = -1
    is_backward: bool = False
    _stack: str | None = None
    _modules: str | None = None

    def stack(self) -> str:
        if self._stack is None:
            above = self.around.stack() if self.around else ""
            self._stack = SEPARATOR.join(part for part in (above, self.site) if part)
        return self._stack

    def modules(self) -> str:
        if self._modules is None:
            above = self.around.modules() if self.around else ""
            self._modules = SEPARATOR.join(part for part in (above, self.module) if part)
        return self._modules


class _Row(NamedTuple):
    time_ns: int
    address: int
    num_bytes: int
    context: _Context


class WindowEvents:
    def __init__(self, calls: "CallSites", device: torch.device | None = None) -> None:
        """Allocations of one CUDA device, which must have an index; None is the host's."""
        self._calls = calls
        self._place = ("cpu", None) if device is None else (device.type, device.index)
        self._rows: list[_Row] = []
        self._forward: dict[int, _Context] = {}

    def walk(self, roots: list[Any], most: int = sys.maxsize) -> int:
        """Go through all events, or one more than `most`; how many these were."""
        kind, index = self._place
        todo, num_events = [(root, _Context()) for root in reversed(roots)], 0
        while todo and num_events <= most:
            event, around = todo.pop()
            num_events += 1
            fields = event.extra_fields
            if hasattr(fields, "alloc_size"):
                if fields.device.type == kind and index in {None, fields.device.index}:
                    address = (
                        fields.ptr - (1 << 64) if fields.ptr >= 1 << 63 else fields.ptr
                    )  # a column has signed ones
                    self._rows.append(_Row(event.start_time_ns, address, fields.alloc_size, around))
                continue
            context = self._inside(event, fields, around)
            todo.extend((child, context) for child in reversed(event.children))
        return num_events

    def write_allocations(self, path: Path) -> None:
        rows, nowhere = sorted(self._rows, key=lambda row: row.time_ns), _Context()
        origins = [
            self._forward.get(row.context.sequence, nowhere) if row.context.is_backward else nowhere for row in rows
        ]
        columns = {
            "time_ns": integers([row.time_ns for row in rows]),
            "address": integers([row.address for row in rows]),
            "num_bytes": integers([row.num_bytes for row in rows]),
            "operation": strings([row.context.operation for row in rows]),
            "stack": strings([row.context.stack() for row in rows]),
            "forward_stack": strings([origin.stack() for origin in origins]),
            "modules": strings(
                [origin.modules() or row.context.modules() for row, origin in zip(rows, origins, strict=True)]
            ),
            "is_backward": booleans([row.context.is_backward for row in rows]),
        }
        table = pa.table({name: columns[name] for name in ALLOCATION_COLUMNS})
        with written_whole(path) as part:
            parquet.write_table(table, part, compression="zstd")

    def _inside(self, event: Any, fields: Any, around: _Context) -> _Context:
        caller = getattr(fields, "caller", None)
        if caller is not None:
            module = getattr(fields, "module", None)
            return _Context(
                around,
                site=self._calls.note(event, caller),
                module=module.cls_name if module is not None else "",
                operation=around.operation,
                sequence=around.sequence,
                is_backward=around.is_backward,
            )
        if not hasattr(fields, "sequence_number"):
            return around
        sequence = fields.sequence_number
        if around.is_backward or sequence < 0:
            sequence = around.sequence  # what a node runs inside itself belongs to the node's own operation
        context = _Context(
            around,
            operation=event.name.removeprefix(EVALUATE),
            sequence=sequence,
            is_backward=around.is_backward or event.name.startswith(EVALUATE),
        )
        if not context.is_backward and context.sequence != around.sequence:
            # The last one: what runs before the node is made, without a gradient, has its number already.
            self._forward[context.sequence] = context
        return context


def integers(values: Sequence[int], kind: Any = np.int64) -> pa.Array:
    """A column made from its bytes.

    `pyarrow.array` would import pandas for it: a fifth of a second, tens of MiB, and Python forgets that Ctrl-C ended
    the program, which then exits with 1 and not as a signal does.
    """
    numbers = np.asarray(values, kind)
    return pa.Array.from_buffers(pa.from_numpy_dtype(kind), len(values), [None, pa.py_buffer(numbers)])


def booleans(values: Sequence[bool]) -> pa.Array:
    bits = np.packbits(np.asarray(values, bool), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])


def strings(values: Iterable[str]) -> pa.Array:
    places: dict[str, int] = {}
    indices = [places.setdefault(value, len(places)) for value in values]
    encoded = [value.encode() for value in places]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    dictionary = pa.Array.from_buffers(pa.string(), len(encoded), buffers)
    return pa.DictionaryArray.from_arrays(integers(indices, np.int32), dictionary)


class CallSites:
    """The line of every call made in the user's code in a window, by its start: torch's trace has no lines."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._names: dict[tuple[str, int, str], tuple[str, bool]] = {}
        self._calls: dict[int, str] = {}

    def note(self, event: Any, caller: Any) -> str:
        """The site that `event` was called from; kept where it lies in the user's code."""
        name, is_user = self._site(caller)
        if is_user:
            self._calls[event.start_time_ns] = name
        return name

    def write(self, path: Path) -> None:
        """Write one parquet row per call made in the user's code."""
        columns = {"start_ns": integers(list(self._calls)), "site": strings(self._calls.values())}
        with written_whole(path) as part:
            parquet.write_table(pa.table({name: columns[name] for name in SITE_COLUMNS}), part, compression="zstd")

    def _site(self, caller: Any) -> tuple[str, bool]:
        try:
            key = (caller.file_name, caller.line_number, caller.function_name)
        except UnicodeDecodeError:  # its code was freed within the window, and with it the names
            return NAMELESS, False
        known = self._names.get(key)
        if known is None:
            path = self._sites.absolute(caller.file_name)
            name = f"{self._sites.file(path)}:{caller.line_number}:{caller.function_name}"
            known = self._names[key] = (name, self._sites.is_user_file(path))
        return known
