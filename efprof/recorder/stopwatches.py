"""The stopwatch in C, or what stands in for it where efprof was installed without a compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from efprof.recorder.stopwatch import Stopwatch

_Stopwatch: Any = None
with contextlib.suppress(ImportError):
    from efprof.recorder.stopwatch import Stopwatch as _Stopwatch

HAS_STOPWATCH = _Stopwatch is not None
"""Without it every step is walked, which costs a short one three times as much."""


class NoStopwatch:
    """Never takes note: Python sees to everything."""

    is_on = takes_numbers = takes_clips = False
    at = nested = number = thread = optimizer = read_due = limit = 0
    sequence = -1
    canary: Any = None
    loss: Any = None
    gradient_norm: torch.Tensor | None = None

    def mark(self, _: object) -> bool:
        """Python has to see to it."""
        return False

    def reads_by_design(self) -> bool:
        """Nobody knows."""
        return False

    def start(self, *_: object) -> None:
        """It never does."""

    counted = took_loss = clipped = updates = mark
    stop = release = use = start


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
        max_step_ns=max_step_ns,
        write_after_ns=write_after_ns,
    )
    return made
