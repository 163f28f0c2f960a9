"""Counts and times the calls that make a step wait, by the user's line.

Synchronising reads of tensors are `scalar_reads`' business, which wraps them too. torch's own debug mode for
synchronisations would see a few more (a mask as an index), but it speaks through `warnings`: a program's filters
would hide them or turn them into errors, and it tells no time. Never run on a GPU so far.
"""

import functools
import gc
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from efprof.recorder.hooks import Undo, replace
from efprof.recorder.session import Session

NAMES = (
    "torch.cuda.synchronize",
    "torch.cuda.empty_cache",
    "torch.cuda.reset_peak_memory_stats",
    "torch.cuda.Stream.synchronize",
    "torch.cuda.Event.synchronize",
    "torch.accelerator.synchronize",
    "torch.accelerator.empty_cache",
    "torch.accelerator.reset_peak_memory_stats",
    "gc.collect",
)
"""`reset_max_memory_allocated` and its like call `reset_peak_memory_stats`. On the CPU all but the last return at once:
they are counted there too, since a run on a device would wait."""

_MEMORY_MODULES = ("torch.cuda.memory", "torch.accelerator.memory")
"""Where torch's own functions look up those that `torch.cuda` and `torch.accelerator` only name again."""


def start(session: Session) -> None:
    """Wrap the calls wherever torch has them; an older one lacks some."""
    stalls = _Stalls(session)
    undo: list[Undo] = []
    for name in NAMES:
        owner, attribute = _owner_of(name)
        original = getattr(owner, attribute, None)
        if original is not None:
            counted = stalls.counted(name, original)
            undo += [replace(place, attribute, counted) for place in _places(owner, attribute, original)]
    session.undo_at_end(undo)


class _Stalls:
    """Wraps what stalls; a call within another one is not counted again, nor is one of the recorder's own."""

    def __init__(self, session: Session) -> None:
        self._loop = session.loop
        self._sites = session.sites
        self._is_stalling = False
        self._noted = session.shell.guarded("stalls", self._note)

    def counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """`original`, counted at the user's line that called it."""
        loop = self._loop

        @functools.wraps(original)
        def stall(*args: Any, **kwargs: Any) -> Any:
            if not loop.is_ours or self._is_stalling or loop.step is None:
                return original(*args, **kwargs)
            self._is_stalling = True
            start = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_stalling = False
                self._noted(name, sys._getframe(1), time.perf_counter_ns() - start)

        return stall

    def _note(self, name: str, caller: FrameType, spent_ns: int) -> None:
        frame: FrameType | None = caller
        while frame is not None and not self._sites.is_user_code(frame.f_code):
            if frame.f_code is self._noted.__code__:
                return  # a function of the recorder's, which all run guarded, made the call
            frame = frame.f_back
        if frame is not None and self._loop.step is not None:
            self._loop.step.note_stall(self._sites.of_frame(frame), name, spent_ns)


def _owner_of(name: str) -> tuple[Any, str]:
    *path, attribute = name.split(".")
    owner: Any = {"torch": torch, "gc": gc}[path[0]]
    for part in path[1:]:
        owner = getattr(owner, part, None)
    return owner, attribute


def _places(owner: Any, attribute: str, original: object) -> list[Any]:
    modules = (sys.modules.get(name) for name in _MEMORY_MODULES)
    return [owner, *(module for module in modules if getattr(module, attribute, None) is original)]
