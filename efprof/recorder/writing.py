"""Append-only files that a crash or a full disk cannot spoil."""

import errno
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from efprof.artifacts.events import TrainingRaised
from efprof.artifacts.steps import StepRecord
from efprof.recorder.claim import claim_folder
from efprof.recorder.kept_file import KeptFile

ERRORS_OF_ANOTHER = (
    "ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError",
    "KeyboardInterrupt",
)  # fmt: skip
"""What ends a launcher (torchrun, accelerate, torch.multiprocessing.spawn) when its workers have ended badly. In a
process without a step of its own they tell of nothing that the workers have not told themselves."""


class RankFolder:
    """This process's folder in the run, made when something is first written: a child that never trains leaves none.

    With `waits_for_training`, lines wait in memory until the process shows that it trains, or fails to: many an
    imported torch trains nothing, such as a launcher's or a data worker's, and by then the rank is known too.

    When the disk refuses (full, gone, read-only) it warns once, and nothing more is written: half a recording
    that goes on in silence would be read as a whole one.
    """

    def __init__(self, run_folder: Path, *, waits_for_training: bool = False) -> None:
        self.is_broken = False
        self.when_broken: Callable[[str], None] | None = None
        self._run_folder = run_folder
        self._path: Path | None = None
        self._waits = waits_for_training
        self._waiting: list[tuple[Callable[[bytes], None], bytes]] = []
        self._making = threading.RLock()
        """Of the threads that write first, one makes the folder; writing what waited asks for it again."""

    @property
    def path(self) -> Path:
        """Where this process writes; raises OSError where it cannot be made."""
        if self._path is None:
            with self._making:
                self._make()
        assert self._path is not None
        return self._path

    def _make(self) -> None:
        if self._path is None:
            self._path = claim_folder(self._run_folder)
            for append, line in self._waiting:
                append(line)
            self._waiting.clear()

    def keeps_waiting(self, record: msgspec.Struct) -> bool:
        """Whether this record is no reason to make the folder yet."""
        return self._path is None and self._waits and not _shows_training(record)

    def keep(self, append: Callable[[bytes], None], line: bytes) -> None:
        """Have `append` called with this line once there is a folder."""
        with self._making:
            if self._path is None:
                self._waiting.append((append, line))
                return
        append(line)  # another thread has made it meanwhile

    def may_have_refused(self, error: OSError) -> bool:
        """Whether it is this folder that is missing, and not another file that somebody looked for."""
        return error.errno != errno.ENOENT or str(error.filename).startswith(str(self._run_folder))

    def give_up(self, error: OSError) -> None:
        """Say once that the recording is over."""
        if is_of_a_signal(error):
            raise error  # such as a TimeoutError, which is an OSError too
        if self.is_broken:
            return
        self.is_broken = True
        why = error.strerror or str(error)
        print(
            f"efprof: {self._run_folder} cannot be written ({why}): recording stops, training goes on", file=sys.stderr
        )
        if self.when_broken is not None:
            self.when_broken(why)


class LineWriter:
    """Writes one JSON object per line, each with a single system call."""

    def __init__(self, folder: RankFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._encoder = msgspec.json.Encoder()
        self._file: KeptFile | None = None
        self._is_torn = False

    def write(self, record: msgspec.Struct) -> None:
        """Append one record; after this call it survives the process being killed."""
        if self._folder.is_broken:
            return
        try:
            line = self._encoder.encode(record) + b"\n"
            if self._file is None and self._folder.keeps_waiting(record):
                self._folder.keep(self._append, line)
            else:
                self._append(line)
        except OSError as error:
            self._folder.give_up(error)

    def write_last(self, record: msgspec.Struct) -> None:
        """Append one record although the disk has refused: where a whole file did not fit, a line often does."""
        with suppress(OSError):
            self._append(b"\n" * self._is_torn + self._encoder.encode(record) + b"\n")

    def _append(self, line: bytes) -> None:
        folder = self._folder.path  # making it writes what waited for it, perhaps by this very writer
        if self._file is None:
            self._file = KeptFile(folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        written = os.write(self._file.descriptor(), line)
        self._is_torn = written != len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _shows_training(record: msgspec.Struct) -> bool:
    """A step, or the error that ended a process which was to train."""
    return isinstance(record, StepRecord) or (
        isinstance(record, TrainingRaised) and record.error not in ERRORS_OF_ANOTHER
    )


OWN_FOLDER = os.path.join(os.path.dirname(__file__), "")  # noqa: PTH118, PTH120 - compared with what Python calls files


def is_of_a_signal(error: Exception) -> bool:
    """Whether a handler of the program's raised it: Python calls that wherever the program happens to be."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    """None of what is not written in Python, and of our own handlers."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004 - not whether, but which
    code = getattr(function, "__code__", None)
    return None if code is None or code.co_filename.startswith(OWN_FOLDER) else code
