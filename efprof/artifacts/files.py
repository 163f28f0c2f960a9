"""How files of a run are written and read: whole, or line by line, whatever instant the writer died at."""

import gc
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from efprof.model import NotRecorded, UnreadableInput

T = TypeVar("T")
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
"""What msgspec raises for bytes that are no JSON; for text that is not UTF-8, the second up to its release 0.22."""

MAX_LOCK_S = 10.0
"""What is done under a lock takes milliseconds: longer, and its holder is stuck."""


def read_lines(path: Path, kind: type[T], how_to_record: str, *others: type[T]) -> tuple[list[T], int]:
    """Decode every line as `kind`, or as one of `others`; returns the records and the number of lines dropped.

    A last line without its newline was torn by a crash and is dropped. A torn line in the middle (a disk that
    filled up) is dropped too. Raises NotRecorded where the file is missing.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotRecorded(f"{path.name} is missing; {how_to_record}") from None
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror}.") from None
    decoders = [msgspec.json.Decoder(kind) for kind in (kind, *others)]
    *lines, torn = content.split(b"\n")
    decoded = [_decoded(line, decoders) for line in lines]
    records = [record for record in decoded if record is not None]
    return records, len(decoded) - len(records) + bool(torn)


def lines_if_any(path: Path, kind: type[T]) -> list[T]:
    """Every whole line of a file that is there only where there was something to write."""
    return read_lines(path, kind, "")[0] if path.exists() else []


def read_json(path: Path, kind: type[T]) -> T:
    """The file's one object as `kind`; raises UnreadableInput where it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except NOT_JSON as error:
        raise UnreadableInput(f"{path} is not what efprof writes ({error}).") from None


def read_columns(path: Path, names: Sequence[str], what: str) -> Any:
    """A table of these columns of a Parquet file; raises UnreadableInput where it is not a whole `what`."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:  # `read_table` imports pyarrow's data sets, and pandas: 0.3 s
            return file.read(columns=list(names)).select(names)
    except (OSError, KeyError, pyarrow.ArrowException) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        why = first.removeprefix(f"Could not open Parquet input source '{path}': ").partition(".")[0]
        raise UnreadableInput(f"{path} is not a whole {what} ({why}); record the run again.") from None


def numbered_files(folder: Path, stem: str, suffix: str, how_to_record: str = "") -> list[Path]:
    """`<stem>-<n><suffix>` of a folder, by their numbers; raises NotRecorded where it is told how to record them."""
    form = re.compile(rf"{stem}-(\d+){re.escape(suffix)}")
    found = [(form.fullmatch(path.name), path) for path in folder.glob(f"{stem}-*{suffix}")]
    paths = [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]
    if not paths and how_to_record:
        raise NotRecorded(f"{stem}-<n>{suffix} is missing{how_to_record}")
    return paths


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then rename it into place."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)  # which it is, unless something failed


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Decoding makes a million live objects and no garbage: collecting meanwhile doubles its time (measured)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def bounded_memory(num_bytes: int) -> Iterator[None]:
    """Let the process have no more than this on top of what it has, so that a few bytes cannot ask for all there is."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError):  # no Linux
        yield
        return
    limit = pages * resource.getpagesize() + num_bytes
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _decoded(line: bytes, decoders: list[msgspec.json.Decoder[T]]) -> T | None:
    for decoder in decoders:
        with suppress(*NOT_JSON):
            return decoder.decode(line)
    return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time, as far as the file system can; nobody waits longer than `MAX_LOCK_S` for another."""
    import fcntl  # the analysis runs where there is none

    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # whoever writes there will say so
        yield
        return
    try:
        end = time.monotonic() + MAX_LOCK_S
        while time.monotonic() < end:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a network drive without locks
                break
        yield
    finally:
        os.close(descriptor)
