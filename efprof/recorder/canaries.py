"""The one gradient of each optimizer that is looked at in a step in which not all are read."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from efprof.artifacts.pending import MAX_MARKS
from efprof.recorder.gradients import is_plain, read_value

if TYPE_CHECKING:
    from efprof.recorder.stopwatch import Stopwatch
    from efprof.recorder.stopwatches import NoStopwatch

MAX_CANDIDATES = 8
"""Parameters that are looked at to choose one."""

MAX_ZERO_READS = 8
"""Times that another gradient is chosen to be looked at since one was zero; some models have hardly any other."""

Canary = weakref.ref[torch.Tensor]
"""The parameter that has the gradient."""


class Canaries:
    """One for each optimizer, None where no gradient can be looked at alone."""

    def __init__(self, watch: Stopwatch | NoStopwatch) -> None:
        """`watch` looks at the same ones in sprints."""
        self._watch = watch
        self._chosen: WeakKeyDictionary[torch.optim.Optimizer, Canary | None] = WeakKeyDictionary()
        self._num_zero_reads = 0

    def __contains__(self, optimizer: torch.optim.Optimizer) -> bool:
        return optimizer in self._chosen

    def __getitem__(self, optimizer: torch.optim.Optimizer) -> Canary | None:
        return self._chosen[optimizer]

    def choose(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        """One of these, all of which have gradients."""
        self._chosen[optimizer] = _canary_of(parameters)

    def share(self, optimizer: torch.optim.Optimizer) -> None:
        """The stopwatch looks at the same gradient; those of more optimizers than a sprint may have are forgotten."""
        if len(self._watch.canaries) > MAX_MARKS:
            self._watch.canaries.clear()
        self._watch.canaries[id(optimizer)] = self._chosen.get(optimizer)

    def read(self, canary: Canary) -> float | None:
        """A gradient that a bad one anywhere above would have reached: it is read for little.

        None where it is gone: then all gradients have to be read.
        """
        parameter = canary()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or not can_be_canary(gradient):
            return None
        value = _first_number(gradient)
        if value or self._num_zero_reads >= MAX_ZERO_READS:
            return value
        self._num_zero_reads += 1
        return None  # a unit that is dead, or a row of an embedding that was not looked up: it tells of nothing

    def forget(self) -> None:
        """Choose others at the next step: as long as we have a weak reference to a parameter, none can be swapped."""
        self._chosen.clear()
        self._watch.canaries.clear()


def can_be_canary(gradient: torch.Tensor | None) -> bool:
    """Whether its first number can be read without waiting for anything."""
    return (
        gradient is not None
        and is_plain(gradient)
        and gradient.is_cpu
        and gradient.numel() > 0
        and gradient.untyped_storage().nbytes() > 0  # some free it while they keep the tensor
    )


def _canary_of(parameters: list[torch.Tensor]) -> Canary | None:
    """The first parameter that can be one: the first layers' gradients are made from all the others'.

    One without a zero is better: a zero may come from a unit that is dead, and stand for nothing.
    """
    candidates = [one for one in parameters if can_be_canary(one.grad)][:MAX_CANDIDATES]
    full = (one for one in candidates if one.grad is not None and not _has_zero(one.grad))
    first = next(full, candidates[0] if candidates else None)
    return None if first is None else weakref.ref(first)


def _has_zero(gradient: torch.Tensor) -> bool:
    """Whether one of its numbers is exactly zero."""
    with torch.no_grad():
        return int(torch.count_nonzero(gradient).numpy()) < gradient.numel()


def _first_number(gradient: torch.Tensor) -> float:
    """Of one that can be a canary."""
    if gradient.dtype == torch.float32:  # straight from memory: even one torch operator costs 5 us here
        return ctypes.c_float.from_address(gradient.data_ptr()).value
    with torch.no_grad():
        return float(read_value(gradient[(0,) * gradient.ndim]))
