"""Counts and times the calls that copy tensor values to Python, by the user's line."""

import functools
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from efprof.record.hooks import Undo, replace
from efprof.record.session import Session

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

PRINTING = ("torch/_tensor.py", "torch/_tensor_str.py")
"""Formatting and printing read for the user; other reads inside torch are torch's own business."""


def start(session: Session) -> None:
    """Wrap the methods on torch.Tensor, and `torch.nonzero`."""
    undo: list[Undo] = [
        replace(torch.Tensor, name, _counting(session, call, getattr(torch.Tensor, name)))
        for name, call in READS.items()
    ]
    undo.append(replace(torch, "nonzero", _counting(session, "nonzero", torch.nonzero)))
    session.undo_at_end(undo)


def _counting(session: Session, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
    loop = session.loop
    note = session.shell.guarded("scalar_reads", functools.partial(_note, session, call))

    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        # Loading data and stepping the optimizer read by design, on the CPU.
        if loop.step is None or loop.stage in ("data", "optimizer") or not loop.is_ours:
            return original(*args, **kwargs)
        start = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            note(sys._getframe(1), time.perf_counter_ns() - start)

    return read


def _note(session: Session, call: str, caller: FrameType, spent_ns: int) -> None:
    file = caller.f_code.co_filename
    if not session.sites.is_user_code(caller.f_code) and _is_inside_torch(file) and not file.endswith(PRINTING):
        return
    site = session.sites.of_caller(caller)
    if site is not None:
        session.loop.note_read(site, call, spent_ns)


_TORCH = torch.__file__.removesuffix("__init__.py")


def _is_inside_torch(file: str) -> bool:
    return file.startswith(_TORCH)
