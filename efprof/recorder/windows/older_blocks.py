"""Starts a profiler of memory without the line that torch logs of a block which is older than the profiler."""

import ctypes
from collections.abc import Callable

import torch

ERROR = 2
"""In torch's C++ log, the level from which no warning is printed."""


def start_without_line(start: Callable[[], None]) -> None:
    """Start the profiler, and free a block of our own that is older while the C++ log leaves warnings out.

    torch counts such blocks in each process and logs the first of every 1,000. A training frees few of them in its
    windows: 1 to 22, measured on seven programs.
    """
    # By no operator: a mode of the program's would see one.
    block = torch.UntypedStorage(1)  # type: ignore[no-untyped-call]
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(torch._C.__file__), "FLAGS_caffe2_log_level")
    except ValueError:  # a torch that is built in another way
        level = ctypes.c_int()
    start()
    before, level.value = level.value, max(level.value, ERROR)
    del block
    level.value = before
