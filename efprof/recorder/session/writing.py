"""This process's folder in the run, by attempt and rank, and files in it that a crash or a full disk cannot spoil."""

import errno
import functools
import itertools
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec

from efprof.artifacts.events import EVENTS_FILE, TrainingRaised
from efprof.artifacts.files import write_atomically
from efprof.artifacts.runs import PROCESS_FILE, Process, attempt_folder, list_attempts, read_process
from efprof.artifacts.steps import STEPS_FILE, StepRecord

ERRORS_OF_ANOTHER = (
    "ChildFailedError", "SignalException", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError",
    "KeyboardInterrupt",
)  # fmt: skip
"""What ends a launcher (torchrun, accelerate, torch.multiprocessing.spawn) when its workers have ended badly. In a
process without a step of its own they tell of nothing that the workers have not told themselves."""

OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # noqa: PTH118, PTH120 - compared with what Python calls files

RESTARTS_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
"""By which torchrun's agent tells its workers how often it has started them before."""

_IMPORTED_NS = time.monotonic_ns()
"""The recorder begins with this module. When the process began would not do: a shell that has started the last attempt
may become the program itself."""


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
        if self._path is None:
            with self._making:
                if self._path is None:
                    self._use(claim_folder(self._run_folder))
        assert self._path is not None
        return self._path

    def join(self, process_id: int) -> bool:
        """Write to the folder of another process from now on; False where that has not made it yet."""
        for attempt in reversed(list_attempts(self._run_folder)):
            for folder in attempt.rank_folders:
                process = read_process(folder)
                if process is not None and process.pid == process_id:
                    with self._making:
                        self._use(folder)
                    return True
        return False

    def _use(self, path: Path) -> None:
        self._path = path
        for append, line in self._waiting:
            append(line)
        self._waiting.clear()

    def write_json(self, name: str, record: msgspec.Struct) -> None:
        """One whole file, in the place of one of that name."""
        write_atomically(self.path / name, msgspec.json.format(msgspec.json.encode(record)))

    def keeps_waiting(self, record: msgspec.Struct) -> bool:
        """Whether this record is no reason to make the folder yet: no step, nor the error that ended the training."""
        is_error = isinstance(record, TrainingRaised) and record.error not in ERRORS_OF_ANOTHER
        return self._path is None and self._waits and not (is_error or isinstance(record, StepRecord))

    def keep(self, append: Callable[[bytes], None], line: bytes) -> None:
        with self._making:
            if self._path is None:
                self._waiting.append((append, line))
                return
        append(line)  # another thread has made it meanwhile

    def may_have_refused(self, error: OSError) -> bool:
        """Whether it is this folder that is missing, and not another file that somebody looked for."""
        return error.errno != errno.ENOENT or str(error.filename).startswith(str(self._run_folder))

    def give_up(self, error: OSError) -> None:
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


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` once all of it is written; nothing half-written stays."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


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
        self._is_torn = os.write(self._file.descriptor(), line) != len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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


def claim_folder(run_folder: Path) -> Path:
    """Make this process's rank folder, which no other process takes; raises OSError where it cannot be made."""
    # The workers of one agent between two restarts belong together, whenever they begin to train.
    group = f"{os.getppid()}.{_num_restarts()}" if RESTARTS_VARIABLE in os.environ else ""
    process = Process(pid=os.getpid(), group=group)
    draft = run_folder / f".rank-{process.pid}"
    try:
        draft.mkdir(exist_ok=True)
        (draft / PROCESS_FILE).write_bytes(msgspec.json.encode(process))
        began_ns = _written_ns(draft) - (time.monotonic_ns() - _IMPORTED_NS)
        return next(folder for folder in _candidates(run_folder, group, began_ns) if _take(draft, folder))
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _take(draft: Path, folder: Path) -> bool:
    """Rename the draft to `folder`; False where another process came first, even by a moment."""
    folder.parent.mkdir(exist_ok=True)
    try:
        if folder.exists():
            return False
        draft.rename(folder)
    except OSError:
        if folder.exists():  # a folder that holds something is never replaced, and each holds its process file
            return False
        raise
    return True


def _candidates(run_folder: Path, group: str, began_ns: int) -> Iterator[Path]:
    rank = _rank()
    for attempt in itertools.count(_attempt_to_join(run_folder, group, began_ns)):
        folder = attempt_folder(run_folder, attempt)
        numbers = itertools.count() if rank is None else (rank,)
        yield from (folder / f"rank{number}" for number in numbers)


def _attempt_to_join(run_folder: Path, group: str, began_ns: int) -> int:
    """The attempt that this process's launch has begun already, else the next one.

    Where no launcher names the launch, processes that have run at the same time belong together.
    """
    attempts = list_attempts(run_folder)
    for attempt in reversed(attempts):
        if any(_is_of_launch(folder, group, began_ns) for folder in attempt.rank_folders):
            return attempt.number
    return max(attempts[-1].number + 1 if attempts else 0, _num_restarts())


def _is_of_launch(rank_folder: Path, group: str, began_ns: int) -> bool:
    """Whether the process that writes this rank folder, or wrote it, belongs with ours."""
    process = read_process(rank_folder)
    if process is None or process.group != group:
        return False
    return bool(group) or is_alive(process.pid) or _written_ns(rank_folder) > began_ns


def _written_ns(rank_folder: Path) -> int:
    """When it was written to last, by the clock of its file system."""
    paths = [rank_folder / name for name in (PROCESS_FILE, STEPS_FILE, EVENTS_FILE)]
    return max((path.stat().st_mtime_ns for path in paths if path.exists()), default=0)


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number, one that has ended and was not waited for included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _num_restarts() -> int:
    text = os.environ.get(RESTARTS_VARIABLE, "")
    return int(text) if text.isdecimal() else 0


def _rank() -> int | None:
    text = os.environ.get("RANK", "")
    if text.isdecimal():
        return int(text)
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank: int = distributed.get_rank()
    return rank


class KeptFile:
    """Opened at once; raises OSError where that fails.

    A daemon closes every descriptor and opens its own files, which are given the numbers: what the recorder wrote to
    its number then would end in one of them.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._flags = flags | os.O_CLOEXEC
        self._descriptor, self._identity = self._open()

    def descriptor(self) -> int:
        """Its number; it is opened again where the program has closed it. Asking for it costs 1 us (measured)."""
        if not is_still(self._descriptor, self._identity):
            self._descriptor, self._identity = self._open()  # the old number is the program's
        return self._descriptor

    def _open(self) -> tuple[int, tuple[int, int]]:
        descriptor = os.open(self._path, self._flags, 0o644)
        return descriptor, identity_of(descriptor)


def identity_of(descriptor: int) -> tuple[int, int]:
    """What tells the file behind this number from all others; raises OSError where there is none."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def is_still(descriptor: int, identity: tuple[int, int]) -> bool:
    try:
        return identity_of(descriptor) == identity
    except OSError:
        return False
