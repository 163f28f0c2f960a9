"""Counts and times the calls that copy tensor values to Python, by the user's line."""

import functools
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from efprof.recorder.hooks import Undo, replace
from efprof.recorder.session import Session
from efprof.recorder.stand_in import StandIn

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
    """Wrap the methods on torch.Tensor and what prints a tensor.

    Not `torch.nonzero`, which is looked up by what it is in tables of what a tensor's subclass does itself, and by the
    compiler: windows see its calls.
    """
    reads = _Reads(session)
    undo: list[Undo] = [
        replace(torch.Tensor, name, StandIn(reads.counted(call, original), original))
        for name, call in READS.items()
        for original in [getattr(torch.Tensor, name)]
    ]
    undo.append(replace(torch._tensor_str, "_str", reads.counted("print", torch._tensor_str._str)))
    session.undo_at_end(undo)


class _Reads:
    """Wraps what reads, in steps recorded in full; a read within a read is not counted again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._noted = session.shell.guarded("scalar_reads", self._note)
        self._is_reading = False

    def counted(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """`original`, counted at the user's line that called it."""
        loop, noted = self._session.loop, self._noted

        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            if loop.light.is_on or self._is_reading or not self._counts(args[0] if args else None):
                return original(*args, **kwargs)
            self._is_reading = True
            start_ns = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_reading = False
                noted(call, sys._getframe(1), time.perf_counter_ns() - start_ns)

        return read

    def _counts(self, tensor: object) -> bool:
        loop = self._session.loop
        if loop.reads_by_design or not loop.is_ours or loop.step is None:
            return False
        return isinstance(tensor, torch.Tensor) and not _waits_for_nothing(tensor)  # torch.fx calls with what is none

    def _note(self, call: str, caller: FrameType, spent_ns: int) -> None:
        session, file = self._session, caller.f_code.co_filename
        is_ours_to_count = call == "print" or file.endswith(FORMATTING) or not _is_inside_torch(file)
        site = session.sites.of_caller(caller) if is_ours_to_count else None
        if site is not None and session.loop.step is not None:
            session.loop.step.note_read(site, call, spent_ns)


def _waits_for_nothing(tensor: torch.Tensor) -> bool:
    """In a run on a device, a tensor on the CPU; in a run on the CPU every read counts, as it would on a device."""
    return tensor.is_cpu is True and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


_TORCH = torch.__file__.removesuffix("__init__.py")


def _is_inside_torch(file: str) -> bool:
    return file.startswith(_TORCH)
