"""Keeps short steps in mapped memory, which outlives a killed process, until they are written to steps.jsonl."""

import contextlib
import mmap
import os
from pathlib import Path

from efprof.artifacts.pending import COUNT, ENTRIES, ENTRY_BYTES, FILE_BYTES, PENDING_FILE
from efprof.recorder.open_step import OpenStep


class PendingSteps:
    """The file steps.pending; its blocks are allocated beforehand: a full disk must not strike while it is mapped."""

    def __init__(self, rank_folder: Path) -> None:
        descriptor = os.open(rank_folder / PENDING_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self._memory = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        self._path = rank_folder / PENDING_FILE
        self._count = 0

    def add(self, step: OpenStep, codes: tuple[int, ...], marks: list[int], end_ns: int) -> None:
        """A step is over: `marks` are the instants at which stages began and ended, `codes` index STAGE_CODES."""
        offset, count = COUNT.size + self._count * ENTRY_BYTES, len(codes)
        ENTRIES[count].pack_into(
            self._memory, offset, step.number, step.epoch_ns, step.start_ns, end_ns, step.samples, count, *codes, *marks
        )
        self._count += 1
        COUNT.pack_into(self._memory, 0, self._count)

    def clear(self) -> None:
        """They are written."""
        self._count = 0
        COUNT.pack_into(self._memory, 0, 0)

    def close(self) -> None:
        """Everything is written: the file goes."""
        self._memory.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
