"""Tells when a window is worth opening that nobody scheduled."""

import math
from collections.abc import Iterable, Sequence

import torch

from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import Budget, Sampling
from efprof.recorder.session.options import StepRange, Trigger

NUM_STEPS_BEFORE = 20
"""A median of fewer is no yardstick, and memory settles within these: optimizer state, the longest batch so far."""

NUM_FIRST_STEPS = 3
"""The first steps allocate, compile and fill caches: what they take tells nothing of the others."""


MIN_RATIO = 2.0
MIN_EXCESS_US = 20_000.0
"""On a busy machine every third step of 1.4 ms took twice the median, by up to 20 ms (measured): that is the
scheduler's doing, and a window costs more than a hundred such steps."""

MIN_PEAK_RISE = 0.05
MIN_PEAK_RISE_BYTES = 1024**2

TRIGGERED_STEPS = 2

ASKED_FOR = "SIGUSR1 asked for it"

MIN_COST_NS = 200_000_000
"""Of a window, before a step was counted."""

MIN_DISTANCE = 10
"""Steps between windows: closer ones would tell the same, and be measured in each other's wake."""

MAX_WINDOWS: dict[Trigger, int] = {"slow-step": 1, "memory-peak": 1, "non-finite": 1, "signal": 5}
"""Per run: a second window of a kind tells little new, unless a person asks for it."""


class MemoryPeaks:
    """Tells a step that left clearly more memory allocated than every earlier one.

    A rise at the pace of the one before is growth from step to step, of which the count of holders tells more.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._limit = math.inf
        self._num_to_settle = NUM_STEPS_BEFORE
        self._pace = 0.0
        """Bytes per step, if the last reading was above all before it."""
        self._last_number = -1

    def rise(self, number: int, allocated_bytes: int) -> float | None:
        """By what share this step was above all earlier ones, where that is a new peak; None for any other."""
        num_steps, self._last_number = number - self._last_number, number
        if self._num_to_settle:
            self._num_to_settle -= 1
        elif allocated_bytes <= self._peak:
            self._pace = 0.0
            return None
        added = max(0, allocated_bytes - self._peak)
        is_new = allocated_bytes > self._limit and added > 2 * self._pace * num_steps
        rise = added / self._peak if is_new and self._peak else None
        self._pace = added / num_steps
        self._peak += added
        if not self._num_to_settle:
            self._limit = max(self._peak * (1 + MIN_PEAK_RISE), self._peak + MIN_PEAK_RISE_BYTES)
        return rise


class WindowRequests:
    """Why a window is wanted as soon as one may open: whoever wants one asks, and so do slow steps and peaks."""

    def __init__(self, wanted: Sequence[Trigger], budget: Budget, sampling: Sampling) -> None:
        self.asked: list[str] = []
        self.cost_ns = MIN_COST_NS
        """Of the smallest window: one is granted where as much is left."""
        self._budget = budget
        self._sampling = sampling
        self._left: dict[str, int] = {kind: MAX_WINDOWS[kind] for kind in wanted}
        self._why = {"non-finite": "a loss or gradient was not finite", "signal": ASKED_FOR}
        self._looks_for_slow = "slow-step" in wanted
        self._num_lengths = 0
        self._peaks = MemoryPeaks() if "memory-peak" in wanted else None
        self._counts_from = NUM_FIRST_STEPS
        self._clear_from = 0

    def ask(self, kind: str) -> None:
        """Have one opened at the next step that it may open at; from a signal's handler, too."""
        self.asked.append(kind)
        self._sampling.look_at = 0

    def are_waiting(self) -> bool:
        """Whether one is asked for that may open: the budget stands against all but those that a person asks for."""
        return bool(self.asked) and ("signal" in self.asked or self.are_affordable())

    def are_affordable(self, cost_ns: int | None = None) -> bool:
        """What costs so much, or the smallest window."""
        return self._budget.affords(self.cost_ns if cost_ns is None else cost_ns)

    def spend(self, cost_ns: int) -> None:
        """A window took so much."""
        self._budget.spend("windows", cost_ns)

    def note(self, record: StepRecord) -> None:
        number = record.step
        if record.window is not None:
            self._counts_from = number + 2
        if record.window is not None and not record.window.startswith("calls"):
            self._clear_from = number + 1 + MIN_DISTANCE
        counts = number >= self._counts_from
        self.note_length(number, record.total_us)
        if self._peaks is not None and record.memory:
            rise = self._peaks.rise(number, record.memory[-1].allocated_bytes)
            # On a device the allocator's own history tells more, and has a window for this.
            if rise is not None and counts and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                self._peaks = None
                self._why["memory-peak"] = f"step {number} left {rise:.0%} more memory allocated than any before it"
                self.ask("memory-peak")

    def note_length(self, number: int, total_us: float) -> None:
        """The same, of a step of which no more is known than how long it took."""
        if not self._looks_for_slow or number < self._counts_from:
            return
        usual_us = self._sampling.length_ns / 1000
        self._num_lengths += 1
        if self._num_lengths > NUM_STEPS_BEFORE and total_us > max(MIN_RATIO * usual_us, usual_us + MIN_EXCESS_US):
            self._looks_for_slow = False
            self._why["slow-step"] = f"step {number} took {total_us / usual_us:.1f} times the median"
            self.ask("slow-step")

    def take(self, number: int, scheduled: Iterable[StepRange]) -> str | None:
        """Why a window is to open at this step, in words; None where it is too near to another one."""
        last = number + TRIGGERED_STEPS
        is_near = any(start - MIN_DISTANCE < last and number < end + MIN_DISTANCE for start, end in scheduled)
        if number < self._clear_from or is_near:
            return None
        while self.asked:
            kind = "signal" if "signal" in self.asked else self.asked[0]  # a person's request goes first
            self.asked.remove(kind)
            if self._left.get(kind, 0):
                self._left[kind] -= 1
                return self._why[kind]
        return None
