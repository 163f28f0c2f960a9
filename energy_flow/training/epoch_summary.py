"""Sums up every epoch from its steps, once, whether or not the run was broken off in between."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class StepOutcome(NamedTuple):
    """What an epoch's summary needs of a step; `metrics.jsonl` has it of the steps before a resumed run."""

    step: int  # from 1
    loss: float
    gradient_norm: float
    is_skipped: bool
    step_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochSummary:
    """One finished epoch."""

    epoch: int  # from 1
    num_steps: int  # skipped ones included
    num_skipped: int
    mean_loss: float | None  # over the finite losses; None without any
    mean_gradient_norm: float | None  # before clipping, over the steps that were taken; None without any
    seconds: float  # in its steps; what lies between them, as validation does, is left out
    seconds_per_batch: float

    def __str__(self) -> str:
        """Say it in one line."""
        skipped = f"  {self.num_skipped} skipped" if self.num_skipped else ""
        return (
            f"epoch {self.epoch}  loss {_number(self.mean_loss)}  gradient {_number(self.mean_gradient_norm)}  "
            f"{self.num_steps} steps{skipped}  {self.seconds:.1f} s  {self.seconds_per_batch:.3g} s/batch"
        )


class Epochs:
    """Knows which epoch a step belongs to, and adds up the steps of the one that is under way.

    A step belongs to the epoch that its first micro-batch is from: with accumulation it may reach into the next.
    An epoch so short that no step begins in it has no summary.
    """

    def __init__(self, *, batches_per_epoch: int, accumulation: int, past: Iterable[StepOutcome] = ()) -> None:
        """Go on after the steps `past`, whose finished epochs were summed up when they ended."""
        self.batches_per_epoch, self.accumulation = batches_per_epoch, accumulation
        self._under_way = _Totals()
        for outcome in past:
            self.add(outcome)

    def epoch_of(self, step: int) -> int:
        """The epoch of optimizer step `step`; both count from 1."""
        return (step - 1) * self.accumulation // self.batches_per_epoch + 1

    def add(self, outcome: StepOutcome) -> EpochSummary | None:
        """Add a step, the one after the last; its epoch's summary if that is finished with it."""
        self._under_way.add(outcome)
        epoch = self.epoch_of(outcome.step)
        if self.epoch_of(outcome.step + 1) == epoch:
            return None
        totals, self._under_way = self._under_way, _Totals()
        return totals.summary(epoch, self.accumulation)


class _Totals:
    """The steps of one epoch, added up."""

    def __init__(self) -> None:
        self._num_steps = self._num_skipped = 0
        self._ms = 0.0
        self._loss, self._norm = _FiniteMean(), _FiniteMean()

    def add(self, outcome: StepOutcome) -> None:
        self._num_steps += 1
        self._num_skipped += outcome.is_skipped
        self._ms += outcome.step_ms
        self._loss.add(outcome.loss)
        if not outcome.is_skipped:  # one whose loss was bad has a norm that means nothing
            self._norm.add(outcome.gradient_norm)

    def summary(self, epoch: int, accumulation: int) -> EpochSummary:
        return EpochSummary(
            epoch=epoch,
            num_steps=self._num_steps,
            num_skipped=self._num_skipped,
            mean_loss=self._loss.value(),
            mean_gradient_norm=self._norm.value(),
            seconds=self._ms / 1000,
            seconds_per_batch=self._ms / 1000 / (self._num_steps * accumulation),
        )


class _FiniteMean:
    """The mean of the finite among the values added."""

    def __init__(self) -> None:
        self._sum, self._number = 0.0, 0

    def add(self, value: float) -> None:
        if math.isfinite(value):
            self._sum += value
            self._number += 1

    def value(self) -> float | None:
        return self._sum / self._number if self._number else None


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
