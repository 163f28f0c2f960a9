"""Counts and times the calls that make a step wait, by the user's line: what copies tensors to Python, and stalls.

A call that a library makes, which the line only leads to, is counted apart, with the library's frames.

torch's own debug mode for synchronisations would see a few more (a mask as an index), but it speaks through `warnings`:
a program's filters would hide them or turn them into errors, and it tells no time.
"""

import functools
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

from efprof.recorder.hooks.patching import MethodWrapper, Undo, replace
from efprof.recorder.hooks.torch_versions import ACCELERATOR_MEMORY, version_of
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import count_call
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.sites import Sites, callers

READS = ("item", "tolist", "cpu", "nonzero", "__bool__", "__float__", "__int__", "__index__")
"""Methods of a tensor that wait for its values on a device that works asynchronously.

Not `torch.nonzero`, which is looked up by what it is in tables of what a tensor's subclass does itself, and by the
compiler: windows see its calls.
"""

ACCELERATOR_STALLS = ("torch.accelerator.empty_cache", "torch.accelerator.reset_peak_memory_stats")

STALLS = (
    "torch.cuda.synchronize",
    "torch.cuda.empty_cache",
    "torch.cuda.reset_peak_memory_stats",
    "torch.cuda.Stream.synchronize",
    "torch.cuda.Event.synchronize",
    "torch.accelerator.synchronize",
    "gc.collect",
    *(ACCELERATOR_STALLS if version_of(torch) >= ACCELERATOR_MEMORY else ()),
)
"""On the CPU all but `gc.collect` return at once: they are counted there too, since a run on a device would wait."""

FORMATTING = "torch/_tensor.py"
"""`f"{loss:.3f}"` reads here for the user; other reads inside torch are torch's own business."""

AVOIDABLE = frozenset({"get_scale", "_get_value"})
"""But for these functions: who asks a gradient scaler for its scale makes it read, and an optimizer reads its count of
steps from the device only if that was moved there."""

_TORCH = torch.__file__.removesuffix("__init__.py")
_TRITON = _TORCH.removesuffix(f"torch{os.sep}") + f"triton{os.sep}"
_TUNERS = f"{_TORCH}_inductor{os.sep}", _TRITON
"""What waits there tries kernels out, or captures graphs: no line of the user's asked for it."""


def start(session: Session) -> None:
    """Wrap the methods on torch.Tensor, what prints a tensor, and the stalls that this torch has."""
    calls = _WaitingCalls(session.loop, session.sites, session.shell)
    waits = session.shell.guarded("waiting_calls", calls.waits)
    read = functools.partial(calls.counted, waits=waits, note=calls.noted_read)
    undo: list[Undo] = []
    for name in READS:
        call = "int" if name == "__index__" else name.strip("_")
        original = getattr(torch.Tensor, name)
        undo.append(replace(torch.Tensor, name, MethodWrapper(read(call, original), original, session.loop.light)))
    undo.append(replace(torch._tensor_str, "_str", read("print", torch._tensor_str._str)))
    for name in STALLS:
        owner_name, _, attribute = name.rpartition(".")
        with suppress(AttributeError):  # a newer torch may lack one
            owner = pkgutil.resolve_name(owner_name)
            original = getattr(owner, attribute)
            stall = calls.counted(name, original, lambda _: True, calls.noted_stall)
            owners = {owner, sys.modules[original.__module__]}  # it is pickled by its name where it is defined
            undo += [replace(one, attribute, stall) for one in owners if vars(one).get(attribute) is original]
    session.undo_at_end(*undo)


class _WaitingCalls:
    """Wraps what waits, in steps recorded in full; a call within another one is not counted again."""

    def __init__(self, loop: Loop, sites: Sites, shell: Shell) -> None:
        self._loop, self._sites = loop, sites
        self.noted_read = shell.guarded("waiting_calls", self._note_read)
        self.noted_stall = shell.guarded("waiting_calls", self._note_stall)
        self._is_waiting = False

    def counted(
        self,
        call: str,
        original: Callable[..., Any],
        waits: Callable[[Any], bool],
        note: Callable[[str, FrameType, int], None],
    ) -> Callable[..., Any]:
        """`original`, counted by `note` at the user's line that called it, where it `waits` for what it is given."""
        loop = self._loop

        @functools.wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            is_seen = (
                not (loop.light.is_on or self._is_waiting) and loop.thread.is_training_thread and loop.step is not None
            )
            if not is_seen or not waits(args[0] if args else None):
                return original(*args, **kwargs)
            self._is_waiting = True
            start_ns = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_waiting = False
                note(call, sys._getframe(1), time.perf_counter_ns() - start_ns)

        return wait

    def waits(self, tensor: torch.Tensor) -> bool:
        """Not in a run on a device a tensor on the CPU; in a run on the CPU every read that is not by design."""
        on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return not (tensor.is_cpu if on_device else self._loop.clock.reads_by_design)

    def _note_read(self, call: str, caller: FrameType, spent_ns: int) -> None:
        file, step = caller.f_code.co_filename, self._loop.step
        is_of_user = call == "print" or file.endswith(FORMATTING) or not file.startswith((_TORCH, _TRITON))
        if step is not None and (is_of_user or caller.f_code.co_name in AVOIDABLE):
            site, library = self._sites.line_and_library(caller)
            count_call(step.reads, site, call, spent_ns, library if is_of_user else (_of_torch(caller), *library))

    def _note_stall(self, call: str, caller: FrameType, spent_ns: int) -> None:
        for frame in callers(caller):
            if frame.f_code is self.noted_stall.__code__ or frame.f_code.co_filename.startswith(_TUNERS):
                return  # a function of the recorder's, which all run guarded, made the call, or torch's own tuning
            if self._sites.is_user_code(frame.f_code):
                break
        step = self._loop.step
        if step is not None:
            site, library = self._sites.line_and_library(caller)
            is_of_torch = caller.f_code.co_filename.startswith(_TORCH)
            count_call(step.stalls, site, call, spent_ns, (_of_torch(caller), *library) if is_of_torch else library)


def _of_torch(frame: FrameType) -> str:
    code = frame.f_code
    return f"torch/{code.co_filename.removeprefix(_TORCH)}:{frame.f_lineno}:{code.co_qualname}"
