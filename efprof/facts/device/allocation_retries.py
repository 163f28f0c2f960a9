"""How often the CUDA allocator gave its cache back, because it ran out or was told to, and what would spare it."""

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Self

from efprof.artifacts.snapshot import RELEASE, Entry
from efprof.facts.allocator.history import History
from efprof.facts.allocator.script import REQUESTS, capacity_of
from efprof.facts.allocator.what_if import WhatIf
from efprof.facts.device.device_evidence import trial_bars
from efprof.facts.device.device_memory import DeviceHistory, RetryTrials, recorded_devices, try_others
from efprof.facts.device.headroom import device_capacity
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import allowed_bytes, memory_fraction
from efprof.facts.steps.step_times import StepTimes, quantile_change_intervals
from efprof.model import (
    BOUNDARIES,
    CUDA_DEVICE,
    Evidence,
    Narrative,
    NothingToLookAt,
    Numbers,
    frozen_dataclass,
)
from efprof.units import format_interval, format_ms, in_brackets

STAGE_BEFORE = dict(zip(BOUNDARIES, ("data", "forward", "forward", "backward", "optimizer"), strict=True))
"""The stage that ends at a boundary; what lies between two steps ends with the next one's fetch."""
MIN_COMPARED = 5
"""Steps on either side, to tell how much longer those with a retry take."""


@frozen_dataclass
class AllocationRetries:
    """In the steady steps; the median step with one takes `slower_ms` longer, None where too few tell."""

    num_steps: int
    goes_on: bool
    """Whether both halves of the steps had one."""
    num_retried: int
    num_retries: int
    by_stage: tuple[tuple[str, int], ...]
    slower_ms: float | None
    slower_interval_ms: tuple[float, float]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Follow the counter; raises NotRecorded where no step read it, as without CUDA."""
        times = run.get(StepTimes)
        by_step: dict[int, Counter[str]] = {}
        """For each step with a retry, how many each stage had."""
        before: int | None = None
        for record in (time.record for time in times.every):
            for here in record.memory:
                if here.num_retries is None:
                    continue
                if before is not None and here.num_retries > before:
                    of_step = by_step.setdefault(record.step, Counter())
                    of_step[STAGE_BEFORE.get(here.boundary, "other")] += here.num_retries - before
                before = here.num_retries
        if before is None:
            raise NothingToLookAt(CUDA_DEVICE)
        retried = [time.step for time in times.steady if time.step in by_step]
        stages = sum((by_step[step] for step in retried), start=Counter[str]())
        slow_ms = [time.total_ms for time in times.steady if time.step in by_step]
        usual_ms = [time.total_ms for time in times.steady if time.step not in by_step]
        interval = (0.0, 0.0)
        if min(len(slow_ms), len(usual_ms)) >= MIN_COMPARED:
            interval = quantile_change_intervals(usual_ms, slow_ms, 0.5)[1]
        return cls(
            num_steps=len(times.steady),
            goes_on=bool(retried) and retried[0] < times.steady[len(times.steady) // 2].step <= retried[-1],
            num_retried=len(retried),
            num_retries=stages.total(),
            by_stage=tuple(stages.most_common()),
            slower_ms=statistics.median(slow_ms) - statistics.median(usual_ms) if interval[0] > 0 else None,
            slower_interval_ms=interval,
        )


def retried_requests(history: History) -> Iterator[Entry]:
    """The requests that came with memory being given back, and were served after it."""
    _, emptied_at = capacity_of(history)
    is_retry = has_grown = False
    for index, entry in enumerate(history.entries):
        if entry.action in RELEASE:
            if index == 0 or history.entries[index - 1].action not in RELEASE:
                is_retry, has_grown = index not in emptied_at, False
        elif entry.action in REQUESTS:
            has_grown = entry.action != "oom"
        elif entry.action == "alloc":
            if is_retry and has_grown:
                yield entry
            is_retry = has_grown = False


def retry_trials(run: Run) -> RetryTrials | None:
    """Of the first device that a setting helps; None where no replay under the recorded settings has a retry."""
    tried: RetryTrials | None = None
    for device in recorded_devices(run):
        if device.replay.is_trusted and (tried is None or tried.best is None):
            tried = _try(_what_if(run, device)) or tried
    return tried


def retry_evidence(retries: AllocationRetries, tried: RetryTrials | None) -> tuple[Evidence, ...]:
    return (
        Numbers.of(
            "Retries of the allocator",
            ("steps after warm-up", retries.num_steps, "count"),
            ("steps with a retry", retries.num_retried, "count"),
            *((f"retries in the {stage} stage", count, "count") for stage, count in retries.by_stage),
            ("steps with a retry take longer by", retries.slower_ms, "ms", retries.slower_interval_ms),
        ),
        *(() if tried is None else (trial_bars(tried),)),
        Narrative.of(
            "Where the driver has no memory left, the allocator waits for the device, gives all free segments back, "
            "and asks again. The next steps then ask the driver for what was given back: each of these calls is slow.",
            "A line is that of the request which, in a recorded history, was served once memory had been given back; "
            "else that of the stage. Where other processes use the same device, it may be they who fill it. Steps with "
            "a retry may take longer for what causes both, such as a longer batch.",
        ),
    )


def how_much_slower(retries: AllocationRetries) -> str:
    """A clause of the message; empty where it cannot be told."""
    if retries.slower_ms is None:
        return ""
    ends = in_brackets(format_interval(*retries.slower_interval_ms, "ms"))
    return f"; such a step takes {format_ms(retries.slower_ms)} longer{ends}"


def _what_if(run: Run, device: DeviceHistory) -> WhatIf:
    """With as much memory as there was. A limit that the program set itself stays, whatever the configuration.

    Torch holds it against whole segments before it asks the driver: that is not the same as a smaller device.
    """
    capacity = device_capacity(run)
    if capacity is None:
        return device.what_if
    real = run.run_file.devices[0]
    if not capacity == allowed_bytes(run, real) < real.total_bytes:
        return WhatIf(device.history, capacity=capacity)
    settings = replace(device.history.settings, memory_fraction=memory_fraction(run))
    return WhatIf(replace(device.history, settings=settings), capacity=real.total_bytes)


def _try(what_if: WhatIf) -> RetryTrials | None:
    """None where the replay has no retry under the recorded settings.

    The history alone knows of a retry only that the device had no more than was needed then: too little for others.
    """
    recorded = what_if.compared.calls.num_retries
    if not recorded:
        return None
    trials = try_others(what_if)
    fewer = [
        trial
        for trial in trials
        if not trial.outcome.is_out_of_memory and 2 * trial.outcome.calls.num_retries < recorded
    ]
    best = min(
        fewer, key=lambda trial: (trial.outcome.calls.num_retries, trial.outcome.peak_reserved_bytes), default=None
    )
    return RetryTrials(what_if=what_if, trials=trials, best=best)
