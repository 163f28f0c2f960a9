"""Tells the errors that a program's signal handlers raise from our own: those the program waits for."""

import functools
import os
import signal
import traceback
from types import CodeType
from typing import Any

OWN_FOLDER = os.path.join(os.path.dirname(__file__), "")  # noqa: PTH118, PTH120 - compared with what Python calls files


def is_of_a_signal(error: Exception) -> bool:
    """Whether a handler of the program's raised it: Python calls that wherever the program happens to be."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    """None of what is not written in Python, and of our own handlers."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004 - not whether, but which
    code = getattr(function, "__code__", None)
    return None if code is None or code.co_filename.startswith(OWN_FOLDER) else code
