"""What another thread is running, read in one piece.

Frames of another thread, as `sys._current_frames` gives them, may be torn down while Python code walks along them: that
ended programs by a segmentation fault, under Python 3.11 within seconds. Here one call of C makes the whole walk, and
Python changes threads between such calls alone. Nor does the garbage collector run meanwhile, whose finalizers are
Python. To read `f_code` would call the program's audit hooks, which may be Python too: filelock has one, from Python
3.12 on. 46 calls take 60 us, 8 without that; faulthandler, which writes each letter by itself, took 300 us.
"""

import ctypes
import gc
import sys
from collections.abc import Iterator
from itertools import accumulate, chain, compress, repeat, starmap, takewhile, tee
from operator import attrgetter, methodcaller
from types import CodeType
from typing import Any, NamedTuple

MOST_CALLS = 500
"""Of a deeper stack the outermost calls are not read."""

OF_FRAME = attrgetter("f_lineno", "f_globals", "f_lasti")
CODE_OF = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyFrame_GetCode", ctypes.pythonapi))


class Call(NamedTuple):
    code: CodeType
    line: int | None
    """None where an instruction belongs to none, and none before it does."""
    names: dict[str, Any]
    """Of its module."""

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def full_name(self) -> str:
        return f"{self.names.get('__name__', '?')}.{self.code.co_qualname}"


def calls_of(ident: int | None) -> list[Call]:
    """The calls of the thread, innermost first; empty where it runs no Python."""
    if sys.getprofile():  # torch's, which goes to each thread: a sample is 50 events that are none of the program's
        sys.setprofile(None)
    read = (one for one in list(_reading(ident)) if isinstance(one, tuple))
    return [Call(code, line or _line_before(code, at), names) for code, (line, names, at) in read]


def _line_before(code: CodeType, at: int) -> int | None:
    """Where a loop goes back to its begin, which is where Python changes threads, the instruction may be of no line."""
    lines = [line for start, _, line in code.co_lines() if line and start <= at]
    return lines[-1] if lines else None


def _reading(ident: int | None) -> Iterator[Any]:
    """What reads them once it is gone through. Nothing else may refer to a part of it, which would keep frames."""
    top = map(methodcaller("get", ident), starmap(sys._current_frames, [()]))
    frames, again = tee(takewhile(bool, accumulate(chain(top, repeat("f_back", MOST_CALLS - 1)), getattr)))
    was_on, is_on_again = tee(starmap(gc.isenabled, [()]))
    calls = zip(map(CODE_OF, frames), map(OF_FRAME, again), strict=True)
    return chain(was_on, starmap(gc.disable, [()]), calls, starmap(gc.enable, compress([()], is_on_again)))
