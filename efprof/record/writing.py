"""Append-only files that a crash or a full disk cannot spoil."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec


class LineWriter:
    """Writes one JSON object per line, each with a single system call, in a folder made at the first line.

    When the disk refuses (full, gone, read-only) it warns once, drops what follows and lets training go on.
    """

    def __init__(self, folder: Callable[[], Path], name: str) -> None:
        self._folder = folder
        self._name = name
        self._encoder = msgspec.json.Encoder()
        self._descriptor: int | None = None
        self._is_broken = False

    def write(self, record: msgspec.Struct) -> None:
        """Append one record; after this call it survives the process being killed."""
        if self._is_broken:
            return
        try:
            self._append(self._encoder.encode(record) + b"\n")
        except OSError as error:
            self._is_broken = True
            print(f"efprof: recording of {self._name} stopped, training goes on: {error.strerror}", file=sys.stderr)

    def close(self) -> None:
        """Close the file; later writes open it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: bytes) -> None:
        if self._descriptor is None:
            path = self._folder() / self._name
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(28, "the disk is full")
