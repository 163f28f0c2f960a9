"""Threads of the recorder's own, which the program does not see: it may wait until there is no other than its own."""

import _thread
from collections.abc import Callable
from threading import Event


class HiddenThread:
    """Not among `threading.enumerate()`, nor traced by `threading.settrace`; it ends with the process at last."""

    def __init__(self, work: Callable[[], None]) -> None:
        """`work`, which raises nothing, is started at once, and running: torch's profiler goes to each thread, and one
        that is not yet may be too new for it.
        """
        self._work = work
        self._has_begun, self._has_ended = Event(), Event()
        _thread.start_new_thread(self._run, ())
        self._has_begun.wait()

    def join(self, max_s: float) -> None:
        """Wait until it has ended."""
        self._has_ended.wait(max_s)

    def _run(self) -> None:
        self._has_begun.set()
        self._work()
        self._has_ended.set()
