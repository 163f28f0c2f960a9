"""Reads a trace in a process of its own, so that a file that is broken, or made to break things, costs one sentence."""

import math
import mmap
import os
import pickle
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from efprof.artifacts.engine import in_processes, started
from efprof.artifacts.files import bounded_memory, no_garbage_collection, numbered_files, read_columns
from efprof.artifacts.processors import num_processors
from efprof.artifacts.trace.blocks import TraceText, size_of
from efprof.artifacts.trace.columns import Columns, Trace
from efprof.artifacts.trace.events import Array, Block, Decoder
from efprof.model import UnreadableInput

SITE_COLUMNS = ("start_ns", "site")
"""Of sites-<n>.parquet: the exact line of every call made in the user's code in a window, beside its trace."""
MIN_LIMIT_BYTES = 1 << 30
MAX_PER_BYTE = {True: 24, False: 2}
"""What a file may take in memory for each of its bytes, packed or not: twelve times and once what real ones take, 60
bytes for an event of 15 bytes packed, or 250."""
LARGE_BYTES = {True: 4 << 20, False: 48 << 20}
"""From this size on, packed or not, several processes decode: each costs some milliseconds, and half a second less."""
MAX_PROCESSES = 4
"""Each unpacks the whole file, a tenth of the work: more of them win little."""


def trace_paths(rank_folder: Path) -> list[Path]:
    """The rank's windows in the order they were recorded; raises NotRecorded where there is none."""
    return numbered_files(rank_folder, "trace", ".json.gz", "; record the run with '--trace-steps 2:4'.")


def lean_paths(rank_folder: Path) -> dict[str, Path]:
    """The lean windows, by the name of the full one that each of them follows."""
    paths = numbered_files(rank_folder, "lean", ".json.gz")
    return {path.name.split(".")[0].replace("lean", "trace"): path for path in paths}


def read_window(path: Path, *, num_processes: int | None = None, until_us: float = math.inf) -> Trace:
    """Read a Kineto trace, plain or packed, an object or a bare list; raises UnreadableInput.

    `num_processes` decode a large file; as many as there are processors where it is None. What begins after `until_us`
    by the file's clock may be left out. A window's trace comes with the call sites that lie beside it; efprof 0.2.0
    wrote them into the trace, as an argument of its calls.
    """
    with tempfile.TemporaryFile(prefix="efprof-trace-") as columns:
        work = partial(_stored, path, columns, num_processes, until_us)
        (answer,) = in_processes([(str(path), work)], 1)
        if isinstance(answer, UnreadableInput):
            raise answer
        trace = _mapped(answer, columns)
    sites = path.with_name(path.name.replace("trace-", "sites-").removesuffix(".json.gz") + ".parquet")
    return _with_sites(trace, sites) if path.name.startswith("trace-") and sites.exists() else trace


def _with_sites(trace: Trace, path: Path) -> Trace:
    table = read_columns(path, SITE_COLUMNS, "file of call sites").unify_dictionaries()
    starts, sites = (table[name].combine_chunks() for name in SITE_COLUMNS)
    calls = np.flatnonzero(trace.is_of("python_function")) if table.num_rows else np.zeros(0, int)
    starts, sites, begun = starts.to_numpy(), sites.dictionary_encode(), trace.start_ns[calls]
    texts = {text: code for code, text in enumerate(trace.texts)}
    told = np.array([texts.setdefault(site, len(texts)) for site in sites.dictionary.to_pylist()], np.int32)
    order = np.argsort(starts, kind="stable")
    rows = order[np.searchsorted(starts, begun, "right", sorter=order) - 1]
    codes = np.where(starts[rows] == begun, told[sites.indices.to_numpy()[rows]], -1)
    sparse = {**trace.sparse, "call_site": (calls[codes >= 0].astype(np.int32), codes[codes >= 0])}
    return replace(trace, texts=list(texts), sparse=sparse)


def read_here(path: Path, num_processes: int = 1, until_us: float = math.inf) -> tuple[TraceText, Columns]:
    """The same in this process, helped by as many others as are wanted beside it."""
    with no_garbage_collection():
        if num_processes > 1:
            try:
                return _read_by(num_processes, path)
            except _NotDecoded:
                pass  # one process joins the pieces, and does what one that was killed did not
        text, columns = TraceText(path, until_us=until_us), Columns()
        for block in text.decoded(Decoder().block):
            columns.add(block)
    return text, columns


class _NotDecoded(Exception):
    """A piece of the text is no list of events, and must be joined with the next; or its process was killed."""


def _read_by(num_processes: int, path: Path) -> tuple[TraceText, Columns]:
    """Each process unpacks the whole file, which is faster than to send its text, and decodes one block of so many."""
    text, columns = TraceText(path), Columns()
    with ExitStack() as running:
        others = [running.enter_context(_other(path, first, num_processes)) for first in range(1, num_processes)]
        own = deque(_every(num_processes, text, 0))
        for process, _ in others:
            process.join()
            if process.exitcode:
                raise _NotDecoded
        for blocks in zip_longest(_given_up(own), *(_written(file) for _, file in others)):
            for block in filter(None, blocks):
                columns.add(block)
    return text, columns


def _every(step: int, text: TraceText, first: int) -> Iterator[Block]:
    decoder = Decoder()
    for number, piece in enumerate(text.blocks()):
        if number % step == first:
            block = decoder.block(piece)
            if block is None:
                raise _NotDecoded
            yield block


def _given_up(blocks: deque[Block]) -> Iterator[Block]:
    while blocks:
        yield blocks.popleft()


@contextmanager
def _other(path: Path, first: int, step: int) -> Iterator[tuple[BaseProcess, BinaryIO]]:
    """A process that writes its blocks to a file, so that it never waits for who reads them."""
    with tempfile.TemporaryFile(prefix="efprof-trace-") as file:
        process = started(_write_blocks, path, file, first, step)
        try:
            yield process, file
        finally:
            process.kill()
            process.join()


def _write_blocks(path: Path, file: BinaryIO, first: int, step: int) -> None:
    try:
        for block in _every(step, TraceText(path), first):
            pickle.dump(block, file, pickle.HIGHEST_PROTOCOL)
        file.flush()
    except (_NotDecoded, UnreadableInput, OSError, MemoryError):
        sys.exit(1)


def _written(file: BinaryIO) -> Iterator[Block]:
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    while file.tell() < end:
        yield pickle.load(file)  # noqa: S301 -- written by a process of ours


def _stored(path: Path, file: BinaryIO, num_processes: int | None, until_us: float) -> dict[str, Any]:
    """Write the columns to the file, one after the other, and say where they lie and what else there is."""
    is_packed, num_bytes = size_of(path)
    available = num_processes or min(MAX_PROCESSES, num_processors())
    try:
        with bounded_memory(max(MIN_LIMIT_BYTES, MAX_PER_BYTE[is_packed] * num_bytes)):
            num_together = available if num_bytes >= LARGE_BYTES[is_packed] and until_us == math.inf else 1
            text, columns = read_here(path, num_together, until_us)
            dense, sparse = columns.ordered(text.header.base_ns, num_together)
    except (ArithmeticError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path} is not a whole profiler trace ({error}); record or copy it again.") from None
    except (MemoryError, RuntimeError):  # that no thread can be started is told by the second
        why = "it needs more memory than a trace of its size does; record it again"
        raise UnreadableInput(f"{path} cannot be read: {why}.") from None
    return {
        "dense": {name: _append(column, file) for name, column in dense.items()},
        "sparse": {name: tuple(_append(column, file) for column in pair) for name, pair in sparse.items()},
        "fields": {
            "path": path.resolve(),
            "header": text.header,
            "texts": list(columns.texts),
            "lanes": list(columns.lanes),
            "num_unreadable": columns.num_unreadable,
        },
    }


def _append(column: Array, file: BinaryIO) -> tuple[str, int, int]:
    """Its type, its length and where in the file it begins, at a multiple of eight bytes."""
    start = -(-file.tell() // 8) * 8
    file.seek(start)
    file.write(np.ascontiguousarray(column).data)
    file.flush()
    return column.dtype.str, len(column), start


def _mapped(answer: dict[str, Any], file: Any) -> Trace:
    size = os.fstat(file.fileno()).st_size
    memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""

    def column(kind: str, length: int, start: int) -> Array:
        return np.frombuffer(memory, np.dtype(kind), length, start) if length else np.empty(0, np.dtype(kind))

    fields = {name: column(*place) for name, place in answer["dense"].items()} | answer["fields"]
    sparse = {name: (column(*places), column(*values)) for name, (places, values) in answer["sparse"].items()}
    return Trace(sparse=sparse, **fields)
