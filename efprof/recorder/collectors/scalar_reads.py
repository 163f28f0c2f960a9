"""Counts and times the calls that copy tensor values to Python, by the user's line."""

import functools
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from efprof.recorder import shell, stopwatches
from efprof.recorder.hooks import Undo, replace
from efprof.recorder.session import Session

READS = {
    "item": "item",
    "tolist": "tolist",
    "cpu": "cpu",
    "nonzero": "nonzero",
    "__bool__": "bool",
    "__float__": "float",
    "__int__": "int",
    "__index__": "int",
}
"""Methods of a tensor that wait for its values on a device that works asynchronously, and their names in a report."""

FORMATTING = "torch/_tensor.py"
"""`f"{loss:.3f}"` reads here for the user; other reads inside torch are torch's own business."""


def start(session: Session) -> None:
    """Wrap the methods on torch.Tensor and what prints a tensor; see `torch.nonzero` in its place.

    That one is looked up by what it is: in tables of what a tensor's subclass does itself, and by the compiler.
    """
    reads = _Reads(session)
    undo: list[Undo] = [
        replace(torch.Tensor, name, reads.counted(call, getattr(torch.Tensor, name))) for name, call in READS.items()
    ]
    undo.append(replace(torch._tensor_str, "_str", reads.counted("print", torch._tensor_str._str)))
    if session.loop.watch.watch_reader(torch.nonzero, *reads.listeners("nonzero")):
        undo.append(session.loop.watch.leave_reader)
    session.undo_at_end(undo)


class _Reads:
    """Wraps what reads; the stopwatch sees to it that a read within a read is not counted again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._start_ns = 0
        self._began = session.shell.guarded("scalar_reads", self._begin)

    def counted(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """`original`, counted at the user's line that called it."""
        reading = self._session.loop.watch.reading(original, *self.listeners(call))
        functools.update_wrapper(reading, original)
        return reading

    def listeners(self, call: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What to call before and after it."""
        return self._began, self._session.shell.guarded("scalar_reads", functools.partial(self._end, call))

    def _begin(self, tensor: object) -> bool:
        loop = self._session.loop
        if loop.reads_by_design or not loop.is_ours or loop.step is None:
            return False
        if not isinstance(tensor, torch.Tensor) or _waits_for_nothing(tensor):  # torch.fx calls with what is none
            return False
        self._start_ns = time.perf_counter_ns()
        return True

    def _end(self, call: str) -> None:
        spent_ns = time.perf_counter_ns() - self._start_ns
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in _OURS:
            frame = frame.f_back
        if frame is not None:
            _note(self._session, call, frame, spent_ns)


def _waits_for_nothing(tensor: torch.Tensor) -> bool:
    """In a run on a device, a tensor on the CPU; in a run on the CPU every read counts, as it would on a device."""
    return tensor.is_cpu is True and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _note(session: Session, call: str, caller: FrameType, spent_ns: int) -> None:
    file = caller.f_code.co_filename
    is_ours_to_count = call == "print" or file.endswith(FORMATTING) or not _is_inside_torch(file)
    site = session.sites.of_caller(caller) if is_ours_to_count else None
    if site is not None and session.loop.step is not None:
        session.loop.step.note_read(site, call, spent_ns)


_TORCH = torch.__file__.removesuffix("__init__.py")
_OURS = (shell.__file__, stopwatches.__file__, __file__)
"""What stands between `_end` and whoever reads."""


def _is_inside_torch(file: str) -> bool:
    return file.startswith(_TORCH)
