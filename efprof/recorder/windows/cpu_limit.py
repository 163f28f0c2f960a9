"""Interrupts the main thread of the program in the middle of a step, where it computes for longer than it may."""

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial

from efprof.recorder.session.hidden_thread import HiddenThread

LOOK_S = 0.01

Callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class CpuLimit:
    """Has `then` called there, between two instructions of Python, once so much CPU time has passed."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._callback = Callback(lambda _: (then(), 0)[1])
        self._is_over = threading.Event()

    def begin(self, most_ns: float) -> None:
        """From here on; nothing interrupts another thread."""
        self.end()
        if threading.current_thread() is threading.main_thread():
            self._is_over = threading.Event()
            clock = time.pthread_getcpuclockid(threading.get_ident())
            HiddenThread(partial(self._look, self._is_over, clock, time.thread_time_ns() + most_ns))

    def end(self) -> None:
        self._is_over.set()

    def _look(self, is_over: threading.Event, clock: int, until_ns: float) -> None:
        while not is_over.wait(LOOK_S):
            if time.clock_gettime_ns(clock) > until_ns:
                ctypes.pythonapi.Py_AddPendingCall(self._callback, None)
                return
