"""Threads of the recorder's own, which the program does not see: it may wait until there is no other than its own."""

import _thread
from collections.abc import Callable


class HiddenThread:
    """Not among `threading.enumerate()`, nor traced by `threading.settrace`; it ends with the process at last."""

    def __init__(self, work: Callable[[], None]) -> None:
        """It is started at once."""
        self._work = work
        self._is_running = _thread.allocate_lock()
        self._is_running.acquire()
        _thread.start_new_thread(self._run, ())

    def join(self, max_s: float) -> None:
        """Wait until it has ended."""
        if self._is_running.acquire(timeout=max_s):
            self._is_running.release()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._is_running.release()
