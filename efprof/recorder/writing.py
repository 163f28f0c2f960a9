"""Append-only files that a crash or a full disk cannot spoil."""

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec


class RankFolder:
    """This process's folder in the run, made when something is first written: a child that never trains leaves none.

    When the disk refuses (full, gone, read-only) it warns once, and nothing more is written: half a recording
    that goes on in silence would be read as a whole one.
    """

    def __init__(self, run_folder: Path) -> None:
        self.is_broken = False
        self.when_broken: Callable[[str], None] | None = None
        self._run_folder = run_folder
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """Where this process writes; raises OSError where it cannot be made."""
        if self._path is None:
            self._path = self._make()
        return self._path

    def give_up(self, error: OSError) -> None:
        """Say once that the recording is over."""
        if self.is_broken:
            return
        self.is_broken = True
        why = error.strerror or str(error)
        print(
            f"efprof: {self._run_folder} cannot be written ({why}): recording stops, training goes on", file=sys.stderr
        )
        if self.when_broken is not None:
            self.when_broken(why)

    def _make(self) -> Path:
        rank = os.environ.get("RANK", "")
        number = int(rank) if rank.isdecimal() else 0
        while True:
            folder = self._run_folder / f"rank{number}"
            try:
                folder.mkdir()
            except FileExistsError:  # a second training process of this run that torchrun did not number
                number += 1
            else:
                return folder


class LineWriter:
    """Writes one JSON object per line, each with a single system call."""

    def __init__(self, folder: RankFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._encoder = msgspec.json.Encoder()
        self._descriptor: int | None = None
        self._is_torn = False

    def write(self, record: msgspec.Struct) -> None:
        """Append one record; after this call it survives the process being killed."""
        if self._folder.is_broken:
            return
        try:
            self._append(self._encoder.encode(record) + b"\n")
        except OSError as error:
            self._folder.give_up(error)

    def write_last(self, record: msgspec.Struct) -> None:
        """Append one record although the disk has refused: where a whole file did not fit, a line often does."""
        with suppress(OSError):
            self._append(b"\n" * self._is_torn + self._encoder.encode(record) + b"\n")

    def _append(self, line: bytes) -> None:
        if self._descriptor is None:
            path = self._folder.path / self._name
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        written = os.write(self._descriptor, line)
        self._is_torn = written != len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
