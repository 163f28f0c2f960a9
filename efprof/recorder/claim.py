"""Which folder of the run a training process writes to: its attempt and its rank."""

import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from efprof.artifacts.attempts import PROCESS_FILE, Process, attempt_folder, list_attempts, read_process

RESTARTS_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
"""By which torchrun's agent tells its workers how often it has started them before."""


def claim_folder(run_folder: Path) -> Path:
    """Make this process's rank folder, which no other process takes; raises OSError where it cannot be made."""
    process = Process(pid=os.getpid(), group=_group())
    draft = run_folder / f".rank-{process.pid}"
    try:
        draft.mkdir(exist_ok=True)
        (draft / PROCESS_FILE).write_bytes(msgspec.json.encode(process))
        return next(folder for folder in _candidates(run_folder, process.group) if _take(draft, folder))
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


def _candidates(run_folder: Path, group: str) -> Iterator[Path]:
    """Folders to try, in order; a numbered rank that is taken means a further attempt."""
    rank = _rank()
    for attempt in itertools.count(_attempt_to_join(run_folder, group)):
        folder = attempt_folder(run_folder, attempt)
        numbers = itertools.count() if rank is None else (rank,)
        yield from (folder / f"rank{number}" for number in numbers)


def _attempt_to_join(run_folder: Path, group: str) -> int:
    """The attempt that this process's launch has begun already, else the next one.

    Where no launcher names the launch, processes that run at the same time belong together.
    """
    attempts = list_attempts(run_folder)
    for attempt in reversed(attempts):
        members = filter(None, map(read_process, attempt.rank_folders))
        if any(member.group == group and (group or is_alive(member.pid)) for member in members):
            return attempt.number
    return max(attempts[-1].number + 1 if attempts else 0, _num_restarts())


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
