"""Calls a function in the main thread, between two of its instructions, as Python calls a signal's handler.

Frames that another thread looks at by `sys._current_frames()` may be torn down meanwhile: on Python 3.11 that ended
programs by a segmentation fault. A thread may always look at its own.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

CALL: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: Final[list[Any]] = []
"""All that were ever made: the interpreter may still hold one of them that has served."""


class MainThreadCall:
    """`function` gets the frame that it interrupts; it may not raise, as guarded ones never do."""

    def __init__(self, function: Callable[[FrameType | None], object]) -> None:
        self._function = function
        self._is_asked = False
        self._call = CALL(self._run)
        _kept.append(self._call)

    def ask(self) -> None:
        """Have it called soon: at once where Python runs, else when the call of C that runs is over."""
        if not self._is_asked:
            self._is_asked = ctypes.pythonapi.Py_AddPendingCall(self._call, None) == 0

    def _run(self, _: object) -> int:
        self._is_asked = False
        self._function(sys._getframe().f_back)
        return 0


def is_main(ident: int | None) -> bool:
    """True if the thread of that `ident` is the one that is interrupted."""
    return ident == threading.main_thread().ident
