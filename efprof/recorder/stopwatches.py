"""The stopwatch in C, or what stands in for it where efprof was installed without a compiler."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from math import nan
from typing import TYPE_CHECKING, Any

import torch

from efprof.recorder.signal_errors import is_of_a_signal
from efprof.recorder.torch_state import address_of_grad_mode, address_of_sequence_number

if TYPE_CHECKING:
    from efprof.recorder.stopwatch import Stopwatch

Told = Callable[..., Any]
Arguments = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""A function that is given its positional arguments and its named ones."""


class _NoFlags:
    """Of a torch that has none."""

    _is_compiling_flag = False


FLAGS: Any = torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else _NoFlags
"""Where torch notes that it exports a program."""

_Stopwatch: Any = None
with contextlib.suppress(ImportError):
    from efprof.recorder.stopwatch import Stopwatch as _Stopwatch

HAS_STOPWATCH = _Stopwatch is not None
"""Without it every step is walked, which costs a short one three times as much."""


class NoStopwatch:
    """Never takes note: Python sees to everything."""

    is_on = takes_numbers = takes_clips = False
    at = nested = number = thread = read_due = memory_due = limit = 0
    sequence = -1
    learning_rate = nan
    loss: Any = None
    gradient_norm: torch.Tensor | None = None
    max_norm = 0.0
    are_hooks_in = False
    _is_reading = False

    def __init__(self) -> None:
        self.canaries: dict[int, Any] = {}

    def mark(self, _: object) -> bool:
        """Python has to see to it."""
        return False

    def watch_class(self, *_: object) -> bool:
        """It sees no calls of a class, nor of a function in C."""
        return False

    def start(self, *_: object) -> None:
        """It never does."""

    counted = add_loss = note_norm = note_rate = mark
    watch_reader = watch_class
    stop = release = use = updates = updated = leave_classes = leave_reader = start

    def fetching(self, original: Told, began: Told, ended: Told, _: Told, exhausted: Told, broke_off: Told) -> Told:
        """`__next__` of a loader's iterator."""

        def fetch(iterator: Any) -> Any:
            has_come = False
            try:  # from the first call on: a signal's handler may raise in it
                began(iterator)
                batch = original(iterator)
                has_come = True
            except StopIteration:
                exhausted()
                raise
            finally:
                if not has_come:
                    broke_off()
            ended(batch)
            return batch

        return fetch

    def going_backward(self, original: Told, entered: Told, _: Told, left: Told) -> Told:
        """`torch.autograd.backward`."""

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            try:
                entered(tensors, _gradients_given(args, kwargs))
                original(tensors, *args, **kwargs)
            finally:
                left()

        return backward

    def reading(self, original: Told, began: Told, has_read: Told) -> Told:
        """What copies a tensor's value to Python."""

        def read(*args: Any, **kwargs: Any) -> Any:
            if self._is_reading or not began(args[0] if args else kwargs.get("input")):
                return original(*args, **kwargs)
            self._is_reading = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_reading = False
                has_read()

        return read

    def clipping(self, original: Told, began: Told, ended: Told, taken: Told) -> Arguments:
        """`clip_grad_norm_`."""

        def clip(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                began()
                norm = original(*args, **kwargs)
            finally:
                ended()
            taken(norm, args, kwargs)
            return norm

        return clip

    def collecting(self, original: Told) -> Told:
        """What the garbage collector calls."""
        return original


def _gradients_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """To `torch.autograd.backward`, of the arguments after its first one."""
    gradients = args[0] if args else kwargs.get("grad_tensors")
    if gradients is None:  # they have an old name, too
        gradients = args[3] if len(args) > 3 else kwargs.get("grad_variables")
    return gradients


def make_stopwatch(
    *, unexpected: Callable[[int], bool], full: Callable[[int], bool], max_step_ns: int, write_after_ns: int
) -> Stopwatch | NoStopwatch:
    """A stopwatch that asks `unexpected` about a call that is not in the pattern, and `full` when it is to be read."""
    if not HAS_STOPWATCH:
        return NoStopwatch()
    made: Stopwatch = _Stopwatch(
        unexpected=unexpected,
        full=full,
        tensor=torch.Tensor,
        float32=torch.float32,
        next_sequence=torch.autograd._get_sequence_nr,  # type: ignore[attr-defined]
        is_grad_enabled=torch.is_grad_enabled,
        is_awaited=_is_awaited,
        flags=FLAGS,
        exchange=getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
        sequence_at=address_of_sequence_number(),
        grad_mode_at=address_of_grad_mode(),
        max_step_ns=max_step_ns,
        write_after_ns=write_after_ns,
    )
    return made


def _is_awaited(error: BaseException) -> bool:
    """Whether the program waits for it: what a signal's handler raises, which runs in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return not isinstance(error, Exception) or is_of_a_signal(error)
