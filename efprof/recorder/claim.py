"""Which folder of the run a training process writes to: its attempt and its rank."""

import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from efprof.artifacts.attempts import PROCESS_FILE, Process, attempt_folder, list_attempts, read_process
from efprof.artifacts.events import EVENTS_FILE
from efprof.artifacts.steps import STEPS_FILE

RESTARTS_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
"""By which torchrun's agent tells its workers how often it has started them before."""

_IMPORTED_NS = time.monotonic_ns()
"""The recorder begins with this module. When the process began would not do: a shell that has started the last attempt
may become the program itself."""


def claim_folder(run_folder: Path) -> Path:
    """Make this process's rank folder, which no other process takes; raises OSError where it cannot be made."""
    process = Process(pid=os.getpid(), group=_group())
    draft = run_folder / f".rank-{process.pid}"
    try:
        draft.mkdir(exist_ok=True)
        (draft / PROCESS_FILE).write_bytes(msgspec.json.encode(process))
        began_ns = _written_ns(draft) - (time.monotonic_ns() - _IMPORTED_NS)
        return next(folder for folder in _candidates(run_folder, process.group, began_ns) if _take(draft, folder))
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
    """Folders to try, in order; a numbered rank that is taken means a further attempt."""
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
        return True
    return True


def _group() -> str:
    """The workers of one agent between two restarts belong together, whenever they begin to train."""
    return f"{os.getppid()}.{_num_restarts()}" if RESTARTS_VARIABLE in os.environ else ""


def _num_restarts() -> int:
    text = os.environ.get(RESTARTS_VARIABLE, "")
    return int(text) if text.isdecimal() else 0


def _rank() -> int | None:
    """The process's number as its launcher or torch.distributed gave it."""
    text = os.environ.get("RANK", "")
    if text.isdecimal():
        return int(text)
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank: int = distributed.get_rank()
    return rank
