"""Which processes a test has started, and the end of those that it left behind."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from efprof.recorder.session.stacks import calls_of

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends: none is lost from sight; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_processes_since(before: set[int], *, patience_s: float) -> list[str]:
    """The commands of what was started since and does not end in that time; it is killed."""
    deadline = time.monotonic() + patience_s
    while left := _running_since(before):
        if time.monotonic() >= deadline:
            return _kill(left, before)
        time.sleep(0.01)
    return []


def started_processes(before: Set[int] = frozenset()) -> Iterator[int]:
    """The children of this thread and theirs; a fixture that starts some beside the tests has a thread for it.

    None of `before`, and none that such a process has started: a browser keeps one ready for the next page.
    """
    for pid in _children_of(os.getpid(), threading.main_thread().native_id):
        yield from _with_all_below(pid, before)


def _with_all_below(pid: int, before: Set[int]) -> Iterator[int]:
    if pid in before:
        return
    yield pid
    for thread in (PROC / str(pid) / "task").glob("*"):
        for child in _children_of(pid, int(thread.name)):
            yield from _with_all_below(child, before)


def _running_since(before: set[int]) -> list[int]:
    return [pid for pid in started_processes(before | _kept_by_multiprocessing()) if not _has_ended(pid)]


def _kept_by_multiprocessing() -> set[int]:
    """Its two servers start with the first process that needs them, and end with this one."""
    servers = (resource_tracker._resource_tracker, forkserver._forkserver)  # type: ignore[attr-defined]
    return {getattr(server, name, None) or 0 for server in servers for name in ("_pid", "_forkserver_pid")}


def _has_ended(pid: int) -> bool:
    """Whether nothing of it is left but its exit code, which is fetched where it is ours."""
    state = _said_of(pid, "stat").rpartition(")")[2].split()[:1]
    if state == ["Z"]:
        with suppress(ChildProcessError):  # a grandchild: its parent fetches it
            os.waitpid(pid, os.WNOHANG)
    return state in ([], ["Z"])


def _kill(left: list[int], before: set[int]) -> list[str]:
    commands = [f"{pid} {_said_of(pid, 'cmdline').replace(chr(0), ' ')[:200]}" for pid in left]
    while left:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        left = _running_since(before)
    return commands


def _children_of(pid: int, thread: int | None) -> list[int]:
    return [int(child) for child in _said_of(pid, f"task/{thread}/children").split()]


def _said_of(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(errors="replace").strip()
    except OSError:  # it has ended, or there is no such file on this system
        return ""


def is_run_by_a_thread(function: Callable[..., object]) -> bool:
    """Whether some thread of this process is in it, one that `threading` does not know of too."""
    calls = [call for ident in sys._current_frames() for call in calls_of(ident)]
    return any(call.code is function.__code__ for call in calls)
