"""A profiler window's CPU allocations, each with the Python stack and the operation it came from."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from efprof.artifacts.allocations import ALLOCATION_COLUMNS, SEPARATOR
from efprof.record.call_sites import caller_site
from efprof.record.sites import Sites

EVALUATE = "autograd::engine::evaluate_function: "
"""How the autograd engine names its call of one node."""


class _Context(NamedTuple):
    """What encloses an event: Python call sites and module classes outermost first, and the operation."""

    stack: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    operation: str = ""
    sequence: int = -1
    is_backward: bool = False


class _Row(NamedTuple):
    time_ns: int
    address: int
    num_bytes: int
    context: _Context


def write_allocations(path: Path, roots: list[Any], sites: Sites) -> None:
    """Write one parquet row per allocation or release, in order of time."""
    rows, forward = _collect(roots, sites)
    rows.sort(key=lambda row: row.time_ns)
    nowhere = _Context()
    origins = [forward.get(row.context.sequence, nowhere) if row.context.is_backward else nowhere for row in rows]
    columns = {
        "time_ns": pa.array([row.time_ns for row in rows], pa.int64()),
        "address": pa.array([row.address for row in rows], pa.int64()),
        "num_bytes": pa.array([row.num_bytes for row in rows], pa.int64()),
        "operation": _strings(row.context.operation for row in rows),
        "stack": _strings(SEPARATOR.join(row.context.stack) for row in rows),
        "forward_stack": _strings(SEPARATOR.join(origin.stack) for origin in origins),
        "modules": _strings(
            SEPARATOR.join(origin.modules or row.context.modules) for row, origin in zip(rows, origins, strict=True)
        ),
        "is_backward": pa.array([row.context.is_backward for row in rows], pa.bool_()),
    }
    part = path.with_name(f".{path.name}.part")
    parquet.write_table(pa.table({name: columns[name] for name in ALLOCATION_COLUMNS}), part, compression="zstd")
    part.rename(path)


def _collect(roots: list[Any], sites: Sites) -> tuple[list[_Row], dict[int, _Context]]:
    """All allocations, and for each autograd sequence number where the forward operation was called."""
    names: dict[tuple[str, int, str], str] = {}
    rows: list[_Row] = []
    forward: dict[int, _Context] = {}
    todo = [(root, _Context()) for root in reversed(roots)]
    while todo:
        event, around = todo.pop()
        fields = event.extra_fields
        if hasattr(fields, "alloc_size"):
            if fields.device.type == "cpu":
                rows.append(_Row(event.start_time_ns, _signed(fields.ptr), fields.alloc_size, around))
            continue
        context = _inside(event, fields, around, sites, names)
        if context.sequence >= 0 and not context.is_backward:
            forward.setdefault(context.sequence, context)
        todo.extend((child, context) for child in reversed(event.children))
    return rows, forward


def _inside(
    event: Any, fields: Any, around: _Context, sites: Sites, names: dict[tuple[str, int, str], str]
) -> _Context:
    caller = getattr(fields, "caller", None)
    if caller is not None:
        module = getattr(fields, "module", None)
        modules = (*around.modules, module.cls_name) if module is not None else around.modules
        return around._replace(stack=(*around.stack, caller_site(caller, sites, names)), modules=modules)
    if hasattr(fields, "sequence_number"):
        is_backward = around.is_backward or event.name.startswith(EVALUATE)
        sequence = around.sequence if fields.sequence_number < 0 else fields.sequence_number
        if around.is_backward:
            sequence = around.sequence  # what a node runs inside itself belongs to the node's own operation
        name = event.name.removeprefix(EVALUATE)
        return around._replace(operation=name, sequence=sequence, is_backward=is_backward)
    return around


def _signed(pointer: int) -> int:
    return pointer - (1 << 64) if pointer >= 1 << 63 else pointer


def _strings(values: Any) -> pa.Array:
    return pa.array(list(values), pa.string()).dictionary_encode()
