"""Passes on to the program what is sent to `efprof record` itself, as if it stood in the program's place."""

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from efprof.artifacts.runs import list_attempts, read_process
from efprof.recorder.launch.machine import descendants_of

ENDING_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)

WAIT_S = 0.5
"""A group gets its signal within a millisecond; the watcher must then be given the processor to say so."""


@dataclass
class RecordedProgram:
    """The recorded command; `received` holds the signals that efprof was sent meanwhile."""

    run_folder: Path
    child: "subprocess.Popen[bytes] | None" = None
    received: set[int] = field(default_factory=set)

    def send(self, number: int) -> None:
        """Pass on a signal: one that ends programs to the command itself, any other to the processes that train."""
        if self.child is None:
            return
        if number in ENDING_SIGNALS:
            self.child.send_signal(number)
            return
        for pid in training_processes(self.run_folder):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def passing_signals(program: RecordedProgram) -> Iterator[None]:
    """Stay until the program has ended, and pass on what reached us alone; the group gets its signals by itself.

    By handlers, since the program would inherit it if we ignored a signal; one that was ignored already stays so.
    """
    numbers = [*ENDING_SIGNALS, signal.SIGUSR1]
    before = {number: signal.getsignal(number) for number in numbers}
    mine = [number for number in numbers if before[number] is not signal.SIG_IGN]
    watcher = GroupWatcher(mine)

    def pass_on(number: int, _: FrameType | None) -> None:
        program.received.add(number)
        if not watcher.has_seen(number):
            program.send(number)

    for number in mine:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])
        watcher.stop()


def training_processes(run_folder: Path) -> list[int]:
    """Those of our descendants that train in this run and handle SIGUSR1, which would end any other process.

    Only where the system tells all this in /proc; elsewhere none.
    """
    known = [read_process(rank) for attempt in list_attempts(run_folder) for rank in attempt.rank_folders]
    pids = {process.pid for process in known if process is not None}
    return sorted(pid for pid in pids.intersection(descendants_of(os.getpid())) if _handles_sigusr1(pid))


def _handles_sigusr1(pid: int) -> bool:
    with suppress(OSError):  # it may end meanwhile
        handled = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return handled is not None and bool(int(handled[1], 16) & 1 << (signal.SIGUSR1 - 1))
    return False


class GroupWatcher:
    """A forked process that notes which of `numbers` it was sent, until it is stopped or we are gone.

    What reaches a process of our own in the same group too, as Ctrl-C in a terminal does, was meant for the group, and
    so for the program as well.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._notes, notes = os.pipe()
        stopped, self._stopping = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _note_signals(numbers, notes, stopped, unneeded=(self._notes, self._stopping))
        os.close(notes)
        os.close(stopped)

    def has_seen(self, number: int) -> bool:
        deadline = time.monotonic() + WAIT_S
        while select.select([self._notes], [], [], max(0.0, deadline - time.monotonic()))[0]:
            note = os.read(self._notes, 1)
            if not note:
                return False  # it has been killed: better twice than not at all
            if note[0] == number:
                return True
        return False

    def stop(self) -> None:
        os.close(self._stopping)
        os.close(self._notes)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _note_signals(numbers: Iterable[int], notes: int, stopped: int, unneeded: tuple[int, ...]) -> None:
    """Note signals until the other end of `stopped` is closed; never returns. It holds no file open but its own two."""

    def note(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(notes, bytes([number]))

    try:
        for number in numbers:
            signal.signal(number, note)
        for descriptor in unneeded:
            os.close(descriptor)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        os.read(stopped, 1)
    finally:
        os._exit(0)
