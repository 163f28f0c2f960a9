"""allocations-<n>.parquet: allocations of the host, or of the CUDA device where there is one, with their lines."""

from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from efprof.artifacts.files import numbered_files, read_columns
from efprof.model import frozen_dataclass


class AllocationEvent(NamedTuple):
    """One allocation (`num_bytes` > 0) or release (< 0) by torch, of host memory or of the current CUDA device's.

    `stack` and `forward_stack` hold sites (`file:line:function`), outermost first, the user's and the libraries'
    alike; `forward_stack` is set for what a backward pass allocated: where the forward operation of the same
    sequence number was called. `modules` are the module classes around it, outermost first.
    """

    time_ns: int
    address: int
    num_bytes: int
    operation: str
    stack: tuple[str, ...]
    forward_stack: tuple[str, ...]
    modules: tuple[str, ...]
    is_backward: bool


@frozen_dataclass
class AllocationWindow:
    """The events of one window in order of time, without the last ones where there are more than MAX_EVENTS."""

    name: str
    events: tuple[AllocationEvent, ...]
    num_unread: int = 0


ALLOCATION_COLUMNS = AllocationEvent._fields
MAX_EVENTS = 200_000
"""Of a window: all that is told of them then takes a second."""
SEPARATOR = "\n"
"""Between the sites of a stack; no file name that Python imports from holds it."""


def allocation_paths(rank_folder: Path) -> list[Path]:
    """The rank's allocation windows in order; raises NotRecorded where there is none."""
    return numbered_files(rank_folder, "allocations", ".parquet", "; record the run with '--trace-steps 2:4'.")


def read_allocations(path: Path) -> AllocationWindow:
    """Read one window; raises UnreadableInput where it is not whole."""
    table = read_columns(path, ALLOCATION_COLUMNS, "allocation window")
    columns = [_values(column[:MAX_EVENTS]) for column in table.columns]

    @cache
    def sites(joined: str) -> tuple[str, ...]:
        return tuple(joined.split(SEPARATOR)) if joined else ()

    for place, name in enumerate(ALLOCATION_COLUMNS):
        if name in ("stack", "forward_stack", "modules"):
            columns[place] = list(map(sites, columns[place]))
    make = partial(tuple.__new__, AllocationEvent)  # a third of the time that `AllocationEvent._make` takes
    return AllocationWindow(
        name=path.name,
        events=tuple(map(make, zip(*columns, strict=True))),
        num_unread=max(0, table.num_rows - MAX_EVENTS),
    )


def _values(column: Any) -> list[Any]:
    """Of texts, which few rows have for themselves, each different one is made once."""
    if column.type != "string":
        values: list[Any] = column.to_numpy().tolist()
        return values
    coded = column.dictionary_encode().combine_chunks()
    texts = coded.dictionary.to_pylist()
    return [texts[code] for code in coded.indices.to_numpy().tolist()]
