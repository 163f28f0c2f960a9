"""Lets SIGTERM end a process in good time, although its handler waits for the main thread to come back to Python."""

import ctypes
import os
import signal
import threading
import time

GRACE_S = 5.0
"""To write an open window, which takes a second or two; launchers and schedulers wait for 10 to 30 s."""

STOP = 0
"""No signal has this number."""


class Grace:
    """A thread that ends this process where SIGTERM's handler has not done so in time.

    Python runs a handler in the main thread, which may hang in a collective call for good, but notes the signal at
    once in a file that is set for it. The thread reads that file; it costs nothing while no signal comes.
    """

    def __init__(self) -> None:
        self._reading, self._writing = -1, -1
        self._thread: threading.Thread | None = None

    @property
    def is_on(self) -> bool:
        """Whether the thread waits."""
        return self._thread is not None

    def begin(self, handler: object) -> None:
        """Watch over SIGTERM while `handler` handles it; only in the main thread, and not where the program
        listens for signals by such a file itself.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reading)
            os.close(writing)
            return
        self._reading, self._writing = reading, writing
        self._thread = threading.Thread(target=_watch, args=(reading, handler), name="efprof-grace", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the thread; only in the main thread."""
        if self._thread is None:
            return
        theirs = signal.set_wakeup_fd(-1)
        if theirs not in (-1, self._writing):
            signal.set_wakeup_fd(theirs)
        os.write(self._writing, bytes([STOP]))
        os.close(self._writing)
        self._thread.join(timeout=1)
        self._thread = None

    def forget(self) -> None:
        """In a forked child, which has the files and not the thread: a signal to it is none of its parent's."""
        if self._thread is None:
            return
        if signal.set_wakeup_fd(-1) == self._writing:
            os.close(self._writing)
            os.close(self._reading)
        self._thread = None


def _watch(reading: int, handler: object) -> None:
    while (number := os.read(reading, 1)) not in (b"", bytes([STOP])):
        if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is handler:
            time.sleep(GRACE_S)
            _die()
    os.close(reading)


def _die() -> None:
    """What SIGTERM does where nobody handles it; Python's own way to say so is for the main thread alone."""
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)
