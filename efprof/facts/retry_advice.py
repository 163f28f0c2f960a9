"""Which setting of the allocator would spare a recorded program its retries, by replaying it."""

import contextlib
from dataclasses import dataclass
from typing import Self

from efprof.facts.allocator.advice import Trial, try_configurations, worth_a_try
from efprof.facts.allocator.what_if import WhatIf
from efprof.facts.device_memory import FEW_CANDIDATES, MANY_EVENTS, DeviceHistory, DeviceMemory
from efprof.facts.headroom import device_capacity
from efprof.facts.run import Run
from efprof.model import NotRecorded, UnreadableInput


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryTrials:
    """A device's history under the recorded settings and under others, on a device as large as the real one.

    `num_recorded` are the retries under the recorded settings from the start that the others have.
    """

    what_if: WhatIf
    num_recorded: int
    trials: tuple[Trial, ...]
    best: Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryAdvice:
    """The recorded histories, none without a snapshot; and of the first one that a setting helps, what it does."""

    devices: tuple[DeviceHistory, ...]
    tried: RetryTrials | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Replay the recorded requests under other settings; never raises NotRecorded."""
        devices: tuple[DeviceHistory, ...] = ()
        with contextlib.suppress(NotRecorded, UnreadableInput):
            devices = run.get(DeviceMemory).devices
        capacity = device_capacity(run)
        tried = (_try(device, capacity) for device in devices if device.replay.is_trusted)
        return cls(devices=devices, tried=next(filter(None, tried), None))


def _try(device: DeviceHistory, capacity: int | None) -> RetryTrials | None:
    """None where no setting has fewer than half of the retries that the replay has under the recorded ones.

    The history alone knows of a retry only that the device had no more than was needed then: too little for others.
    """
    what_if = device.what_if if capacity is None else WhatIf(device.history, capacity=capacity)
    recorded = (what_if.recorded_cold or what_if.recorded).calls.num_retries
    if not recorded:
        return None
    candidates = worth_a_try(what_if)
    if len(device.history.entries) > MANY_EVENTS:
        candidates = candidates[:FEW_CANDIDATES]
    trials = try_configurations(what_if, candidates)
    served = [trial for trial in trials if not trial.outcome.is_out_of_memory]
    fewer = [trial for trial in served if 2 * trial.outcome.calls.num_retries < recorded]
    best = min(fewer, key=_cost, default=None)
    if best is None:
        return None
    return RetryTrials(what_if=what_if, num_recorded=recorded, trials=tuple(trials), best=best)


def _cost(trial: Trial) -> tuple[int, int]:
    return trial.outcome.calls.num_retries, trial.outcome.peak_reserved_bytes
