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
from efprof.processes import descendants_of

ENDING_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)

SPREAD_S = 0.05
"""A group's signal is pending in all its processes within a millisecond."""

MAX_WAIT_S = 10.0
"""For an answer of the watcher, which must be given the processor for it."""

YES, NO = b"y", b"n"


@dataclass
class RecordedProgram:
    """The recorded command; `received` holds the signals that efprof was sent meanwhile."""

    run_folder: Path
    child: "subprocess.Popen[bytes] | None" = None
    received: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    """Of these, what came before the command was known to run."""

    def send(self, number: int) -> None:
        """Pass on a signal: one that ends programs to the command itself, any other to the processes that train.

        Those are our descendants that train in this run and handle SIGUSR1, which would end any other process. Only
        where the system tells all this in /proc; elsewhere none.
        """
        if self.child is None:
            self.waiting.add(number)
            return
        if number in ENDING_SIGNALS:
            self.child.send_signal(number)
            return
        ranks = (rank for attempt in list_attempts(self.run_folder) for rank in attempt.rank_folders)
        pids = {process.pid for process in map(read_process, ranks) if process is not None}
        training = [pid for pid in pids.intersection(descendants_of(os.getpid())) if _handles_sigusr1(pid)]
        for pid in sorted(training):
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


def _handles_sigusr1(pid: int) -> bool:
    with suppress(OSError):  # it may end meanwhile
        handled = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return handled is not None and bool(int(handled[1], 16) & 1 << (signal.SIGUSR1 - 1))
    return False


class GroupWatcher:
    """A forked process in which `numbers` are blocked, so that they stay pending there once they were sent.

    What reaches a process of our own in the same group too, as Ctrl-C in a terminal does, was meant for the group, and
    so for the program as well. It ends when we stop it, or are gone.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = set(numbers)
        asked, self._asking = os.pipe()
        self._answers, answering = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        self._pid = os.fork()
        if self._pid == 0:
            _answer(asked, answering, unneeded=(self._asking, self._answers))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(asked)
        os.close(answering)

    def has_seen(self, number: int) -> bool:
        """Once for each time; False where it does not answer: better twice than not at all."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)  # one question at a time
        try:
            os.write(self._asking, bytes([number]))
            is_answered = select.select([self._answers], [], [], MAX_WAIT_S)[0]
            return bool(is_answered) and os.read(self._answers, 1) == YES
        except OSError:  # it has been killed
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop(self) -> None:
        os.close(self._asking)
        os.close(self._answers)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _answer(asked: int, answering: int, unneeded: tuple[int, ...]) -> None:
    """Say which signals came, until nobody can ask any more; never returns. It holds no file open but its own two."""
    try:
        for descriptor in unneeded:
            os.close(descriptor)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        while question := os.read(asked, 1):
            os.write(answering, YES if _has_come(question[0]) else NO)
    finally:
        os._exit(0)


def _has_come(number: int) -> bool:
    end = time.monotonic() + SPREAD_S
    while number not in signal.sigpending():
        if time.monotonic() > end:
            return False
        time.sleep(SPREAD_S / 10)
    signal.sigwait({number})
    return True
