"""Tells whether a signal came to efprof alone, or to its whole process group and so to the program as well.

A signal does not say whom else it was sent to. So a process of our own waits in the same group: what reaches it too
was meant for the group, as Ctrl-C in a terminal is.
"""

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Iterable
from types import FrameType

PATIENCE_S = 0.5
"""A group gets its signal within a millisecond; the sentinel must then be given the processor to say so."""

MAX_AGE_S = 2.0
"""What the sentinel saw longer ago belongs to an earlier signal of the same number."""

_NOTE = struct.Struct("=id")


class Sentinel:
    """A forked process that notes which of `numbers` it was sent, until it is dismissed or we are gone."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._notes, notes = os.pipe()
        leash, self._leash = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _stand_guard(numbers, notes, leash, unneeded=(self._notes, self._leash))
        os.close(notes)
        os.close(leash)

    def saw(self, number: int) -> bool:
        """Whether the signal we got just now reached the group."""
        deadline = time.monotonic() + PATIENCE_S
        while select.select([self._notes], [], [], max(0.0, deadline - time.monotonic()))[0]:
            note = os.read(self._notes, _NOTE.size)
            if len(note) < _NOTE.size:
                return False  # it has been killed: better twice than not at all
            seen, at = _NOTE.unpack(note)
            if seen == number and at > time.monotonic() - MAX_AGE_S:
                return True
        return False

    def dismiss(self) -> None:
        """End it."""
        os.close(self._leash)
        os.close(self._notes)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _stand_guard(numbers: Iterable[int], notes: int, leash: int, unneeded: tuple[int, ...]) -> None:
    """Note signals until the leash is let go of; never returns. It holds no file open but its own two."""

    def note(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(notes, _NOTE.pack(number, time.monotonic()))

    try:
        for number in numbers:
            signal.signal(number, note)
        for descriptor in unneeded:
            os.close(descriptor)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        os.read(leash, 1)
    finally:
        os._exit(0)
