"""Passes on to the program what is sent to `efprof record` itself, as if it stood in the program's place."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from efprof.artifacts.attempts import list_attempts, read_process
from efprof.recorder.sentinel import Sentinel

ENDING_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


@dataclass
class Program:
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
def passing_signals(program: Program) -> Iterator[None]:
    """Stay until the program has ended, and pass on what reached us alone; the group gets its signals by itself.

    By handlers, since the program would inherit it if we ignored a signal; one that was ignored already stays so.
    """
    numbers = [*ENDING_SIGNALS, signal.SIGUSR1]
    before = {number: signal.getsignal(number) for number in numbers}
    mine = [number for number in numbers if before[number] is not signal.SIG_IGN]
    sentinel = Sentinel(mine)

    def pass_on(number: int, _: FrameType | None) -> None:
        program.received.add(number)
        if not sentinel.saw(number):
            program.send(number)

    for number in mine:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])
        sentinel.dismiss()


def training_processes(run_folder: Path) -> list[int]:
    """Those of our descendants that train in this run and handle SIGUSR1, which would end any other process.

    Only where the system tells all this in /proc; elsewhere none.
    """
    known = [read_process(rank) for attempt in list_attempts(run_folder) for rank in attempt.rank_folders]
    pids = {process.pid for process in known if process is not None}
    return [pid for pid in sorted(pids) if _descends_from_us(pid) and _handles(pid, signal.SIGUSR1)]


def _descends_from_us(pid: int) -> bool:
    while pid > 1:
        pid = int(_status_of(pid).get("PPid", "0"))
        if pid == os.getpid():
            return True
    return False


def _handles(pid: int, number: int) -> bool:
    return bool(int(_status_of(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def _status_of(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
