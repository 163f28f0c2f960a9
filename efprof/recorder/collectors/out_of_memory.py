"""Dumps the CUDA allocator's state when it runs out of memory, before the exception leaves it.

Never run on a GPU so far: the machine this was written on has none.
"""

import time
from typing import Any

import torch

from efprof.artifacts.events import WindowClosed, WindowOpened
from efprof.recorder.cuda_history import is_possible, why_backend_has_none, write_snapshot
from efprof.recorder.session import Session

WINDOW = "memory-out-of-memory"

MAX_SHARE = 0.1
"""Of the time, for dumping: a program that catches the error and tries again fails many times in a row."""


class OutOfMemoryObserver:
    """Called by the allocator, in whichever thread asked for memory. torch cannot detach it: it goes quiet instead."""

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self._next_s = 0.0

    def observe(self, device: int, requested_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        """Write the snapshot, over that of an earlier failure which the program survived."""
        session = self._session
        start = time.monotonic()
        if session is None or start < self._next_s:
            return
        number = session.step_number
        why = (
            f"device {device} could not give {requested_bytes} bytes: "
            f"{free_bytes} of the {limit_bytes} bytes that it may use were free"
        )
        session.note(WindowOpened(at_ns=time.time_ns(), step=number, window=WINDOW, why=why))
        path = session.rank_folder / f"{WINDOW}.pickle"
        write_snapshot(path)
        seconds = time.monotonic() - start
        self._next_s = start + seconds / MAX_SHARE
        session.note(WindowClosed(at_ns=time.time_ns(), step=number, window=WINDOW, seconds=seconds, files=[path.name]))

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self._session is None

    def end(self) -> None:
        """Do nothing from now on, and hold nothing."""
        self._session = None


def start(session: Session) -> None:
    """Wait for CUDA to be initialised by the program itself."""
    if not is_possible():
        return
    observer = OutOfMemoryObserver(session)
    observe = session.shell.guarded("out_of_memory", observer.observe)

    def attach() -> None:
        if not observer.is_over and why_backend_has_none() is None:
            torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]

    guarded: Any = session.shell.guarded("out_of_memory", attach)
    torch.cuda._lazy_call(guarded)  # type: ignore[no-untyped-call]
    session.on_end("out_of_memory", observer.end)
