"""Reads a trace in a process of its own, so that a file that is broken, or made to break things, costs one sentence."""

import gc
import mmap
import multiprocessing
import os
import resource
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from efprof.artifacts.files import no_garbage_collection, numbered_files
from efprof.artifacts.trace.blocks import GZIP, TraceText
from efprof.artifacts.trace.columns import Columns, Trace
from efprof.artifacts.trace.events import Array, Block, Decoder
from efprof.model import UnreadableInput

MIN_LIMIT_BYTES = 1 << 30
MAX_PER_BYTE: Final = {True: 24, False: 2}
"""What a file may take in memory for each of its bytes, packed or not: twelve times and once what real ones take, 60
bytes for an event of 15 bytes packed, or 250."""
LARGE_BYTES: Final = {True: 4 << 20, False: 48 << 20}
"""From this size on, packed or not, several processes decode: each costs some milliseconds, and half a second less."""
MAX_PROCESSES = 8
"""More than decompressing, which is one process's work, can feed."""
_FORK: Final = multiprocessing.get_context("fork")


def trace_paths(rank_folder: Path) -> list[Path]:
    """The rank's windows in the order they were recorded; raises NotRecorded where there is none."""
    return numbered_files(rank_folder, "trace", ".json.gz", "; record the run without '--windows none'.")


def read_trace(path: Path, *, num_processes: int | None = None) -> Trace:
    """Read a Kineto trace, plain or packed, an object or a bare list; raises UnreadableInput.

    `num_processes` decode a large file; as many as there are processors where it is None.
    """
    with tempfile.TemporaryFile(prefix="efprof-trace-") as columns:
        ours, theirs = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_read_in_child, args=(path, columns, theirs, num_processes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: no thread of ours holds a lock
            process.start()
        theirs.close()
        try:
            answer = ours.recv()
        except EOFError:
            process.join()
            raise UnreadableInput(
                f"{path} cannot be read: its reader ended with {process.exitcode}, as where memory is short."
            ) from None
        finally:
            ours.close()
        process.join()
        if isinstance(answer, str):
            raise UnreadableInput(answer)
        return _mapped(answer, columns)


def read_here(path: Path, num_processes: int = 1) -> tuple[TraceText, Columns]:
    """The same in this process."""
    if num_processes > 1:
        try:
            return _collected(TraceText(path), num_processes)
        except (_CutWrong, BrokenProcessPool):
            pass  # one process joins the pieces, and does what one that was killed did not
    return _collected(TraceText(path), 1)


class _CutWrong(Exception):
    """A piece of the text is no list of events, and must be joined with the next."""


def _collected(text: TraceText, num_processes: int) -> tuple[TraceText, Columns]:
    columns = Columns()
    with no_garbage_collection():
        for block in text.decoded(Decoder().block) if num_processes == 1 else _decoded_by(num_processes, text):
            columns.add(block)
    return text, columns


def _decoded_by(num_processes: int, text: TraceText) -> Iterator[Block]:
    with ProcessPoolExecutor(num_processes, mp_context=_FORK, initializer=_start_worker) as pool:
        waiting: deque[Future[Block | None]] = deque()
        for block in text.blocks():
            waiting.append(pool.submit(_decode, b"[%b]" % block))
            if len(waiting) > 2 * num_processes:
                yield _result(waiting)
        while waiting:
            yield _result(waiting)


def _result(waiting: "deque[Future[Block | None]]") -> Block:
    found = waiting.popleft().result()
    if found is None:
        for future in waiting:
            future.cancel()
        raise _CutWrong
    return found


_DECODER: list[Decoder] = []


def _start_worker() -> None:
    gc.disable()
    _DECODER.append(Decoder())


def _decode(text: bytes) -> Block | None:
    return _DECODER[0].block(text)


def _read_in_child(path: Path, file: BinaryIO, answer: Connection, num_processes: int | None) -> None:
    try:
        answer.send(_stored(path, file, num_processes))
    except UnreadableInput as error:
        answer.send(str(error))
    except MemoryError:
        answer.send(f"{path} cannot be read: it needs more memory than a trace of its size does; record it again.")


def _stored(path: Path, file: BinaryIO, num_processes: int | None) -> dict[str, Any]:
    """Write the columns to the file, one after the other, and say where they lie and what else there is."""
    is_packed, num_bytes = _size(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + max(MIN_LIMIT_BYTES, MAX_PER_BYTE[is_packed] * num_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    available = num_processes or min(MAX_PROCESSES, len(os.sched_getaffinity(0)))
    text, columns = read_here(path, available if num_bytes >= LARGE_BYTES[is_packed] else 1)
    dense, sparse = columns.ordered(text.header.base_ns)
    return {
        "dense": {name: _append(column, file) for name, column in dense.items()},
        "sparse": {name: tuple(_append(column, file) for column in pair) for name, pair in sparse.items()},
        "fields": {
            "name": path.name,
            "header": text.header,
            "texts": columns.texts,
            "lanes": columns.lanes,
            "num_unreadable": columns.num_unreadable,
        },
    }


def _size(path: Path) -> tuple[bool, int]:
    try:
        with path.open("rb") as file:
            return file.read(2) == GZIP, path.stat().st_size
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}.") from None


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
