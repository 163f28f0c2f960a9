"""Keeps short steps in mapped memory, which outlives a killed process, until they are written to steps.jsonl."""

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any

from efprof.artifacts.pending import FILE_BYTES, HEADER, PENDING_FILE, PendingStep, parse_step, rows_of


class PendingSteps:
    """The file steps.pending; its blocks are allocated beforehand: a full disk must not strike while it is mapped."""

    def __init__(self, rank_folder: Path) -> None:
        self._path = rank_folder / PENDING_FILE
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
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
        self.memory.close()
        if not keeps:
            with contextlib.suppress(OSError):
                self._path.unlink()
