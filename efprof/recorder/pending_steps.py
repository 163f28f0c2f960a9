"""Keeps short steps in mapped memory, which outlives a killed process, until they are written to steps.jsonl."""

import contextlib
import mmap
import os
from pathlib import Path

from efprof.artifacts.pending import FILE_BYTES, HEADER, PENDING_FILE, PendingStep, parse_step


class PendingSteps:
    """The file steps.pending; its blocks are allocated beforehand: a full disk must not strike while it is mapped."""

    def __init__(self, rank_folder: Path) -> None:
        descriptor = os.open(rank_folder / PENDING_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self.memory = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        self._path = rank_folder / PENDING_FILE

    def __len__(self) -> int:
        """How many steps are over."""
        count: int = HEADER.unpack_from(self.memory)[0]
        return count

    def __getitem__(self, index: int) -> PendingStep:
        """One of them; the next one is the open step."""
        return parse_step(self.memory, index)

    def clear(self) -> None:
        """They are written."""
        self.memory[:8] = bytes(8)

    def close(self) -> None:
        """Everything is written: the file goes."""
        self.memory.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
