"""Keeps short steps in mapped memory, which outlives a killed process, until they are written to steps.jsonl."""

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from efprof.artifacts.pending import FILE_BYTES, HEADER, PENDING_FILE, PendingStep, parse_step, rows_of
from efprof.recorder.kept_file import identity_of, is_still


class PendingSteps:
    """The file steps.pending; its blocks are allocated beforehand: a full disk must not strike while it is mapped."""

    def __init__(self, rank_folder: Path) -> None:
        self._path = rank_folder / PENDING_FILE
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self._identity = identity_of(descriptor)
            self._number = _next_number()
            """Of the descriptor that `mmap` keeps for itself, and closes by its number."""
            self.memory = mmap.mmap(descriptor, FILE_BYTES)
        except OSError:
            self._path.unlink()
            raise
        finally:
            os.close(descriptor)

    def __len__(self) -> int:
        """How many steps are over."""
        count: int = HEADER.unpack_from(self.memory)[0]
        return count

    def __getitem__(self, index: int) -> PendingStep:
        """One of them; the next one is the open step."""
        return parse_step(self.memory, index)

    def rows(self, num_codes: int) -> list[tuple[Any, ...]]:
        """All that are over, with as many instants as a step has calls."""
        return rows_of(self.memory, len(self), num_codes)

    def clear(self) -> None:
        """They are written."""
        self.memory[:8] = bytes(8)

    def close(self, *, keeps: bool) -> None:
        """Everything is written, and the file goes; or it could not be, and the file is all there is of it."""
        with _kept_open(self._number, unless=self._identity):
            self.memory.close()
        if not keeps:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _next_number() -> int:
    """That the next descriptor will have."""
    number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.close(number)
    return number


@contextlib.contextmanager
def _kept_open(number: int, unless: tuple[int, int]) -> Iterator[None]:
    """Where this number is not that file's any more but one of the program's, it is so afterwards, too."""
    try:
        theirs = None if is_still(number, unless) else os.dup(number)
    except OSError:  # it is nobody's
        theirs = None
    if theirs is None:
        yield
        return
    is_inherited = os.get_inheritable(number)
    try:
        yield
    finally:
        os.dup2(theirs, number, inheritable=is_inherited)
        os.close(theirs)
