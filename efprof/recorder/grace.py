"""Lets SIGTERM end a process in good time, although its handler waits for the main thread to come back to Python."""

import _thread
import contextlib
import ctypes
import os
import signal
import time

from efprof.recorder.kept_file import identity_of, is_still, out_of_the_way

GRACE_S = 5.0
"""To write an open window, which takes a second or two; launchers and schedulers wait for 10 to 30 s."""

STOP = 0
"""No signal has this number."""


class Grace:
    """A thread that ends this process where SIGTERM's handler has not done so in time.

    Python runs a handler in the main thread, which may hang in a collective call for good, but notes the signal at
    once in a file that is set for it. The thread reads that file; it costs nothing while no signal comes. The module
    `threading` does not know it: a program that waits for all its threads would wait for it, too.
    """

    def __init__(self) -> None:
        self._reading, self._writing = -1, -1
        self._identity = (0, 0)
        """Of the pipe, by both its ends; the program may close them, and be given their numbers for its own files."""
        self._running: _thread.LockType | None = None
        """Held until the thread ends."""

    @property
    def is_on(self) -> bool:
        """Whether the thread waits."""
        return self._running is not None

    def begin(self, handler: object) -> None:
        """Watch over SIGTERM while `handler` handles it; only in the main thread, and not where the program
        listens for signals by such a file itself.
        """
        reading, writing = map(out_of_the_way, os.pipe())
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reading)
            os.close(writing)
            return
        self._reading, self._writing, self._identity = reading, writing, identity_of(reading)
        running = _thread.allocate_lock()
        running.acquire()
        _thread.start_new_thread(_watch, (reading, self._identity, handler, running))
        self._running = running

    def end(self) -> None:
        """Stop the thread; only in the main thread."""
        if self._running is None:
            return
        theirs = signal.set_wakeup_fd(-1)
        if theirs not in (-1, self._writing):
            signal.set_wakeup_fd(theirs)
        if is_still(self._writing, self._identity):
            os.write(self._writing, bytes([STOP]))
            os.close(self._writing)
        self._running.acquire(timeout=1)
        self._running = None

    def forget(self) -> None:
        """In a forked child, which has the files and not the thread: a signal to it is none of its parent's."""
        if self._running is None:
            return
        if signal.set_wakeup_fd(-1) == self._writing:
            for descriptor in (self._writing, self._reading):
                if is_still(descriptor, self._identity):
                    os.close(descriptor)
        self._running = None


def _watch(reading: int, pipe: tuple[int, int], handler: object, running: _thread.LockType) -> None:
    with contextlib.suppress(OSError):  # Python would print it
        while is_still(reading, pipe) and (number := os.read(reading, 1)) not in (b"", bytes([STOP])):
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is handler:
                time.sleep(GRACE_S)
                _die()
        if is_still(reading, pipe):
            os.close(reading)
    running.release()


def _die() -> None:
    """What SIGTERM does where nobody handles it; Python's own way to say so is for the main thread alone."""
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)
