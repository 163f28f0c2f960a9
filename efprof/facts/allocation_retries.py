"""How often the CUDA allocator ran out, gave its cache back and tried again; in which stage, and for which line."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from efprof.artifacts.snapshot import Entry
from efprof.artifacts.steps import StepRecord
from efprof.facts.allocator.history import History
from efprof.facts.allocator.script import GROWTHS, RELEASES, capacity_of
from efprof.facts.device_memory import DeviceHistory
from efprof.facts.resampling import quantile_change_intervals
from efprof.facts.run import Run
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded

STAGE_BEFORE: Final = {
    "pre_forward": "data",
    "post_forward_pre_backward": "forward",
    "pre_backward": "forward",
    "post_backward": "backward",
    "post_optimizer_step": "optimizer",
}
"""The stage that ends at a boundary; what lies between two steps ends with the next one's fetch."""
LEAST_COMPARED: Final = 5
"""Steps on either side, to tell how much longer those with a retry take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationRetries:
    """Retries in the steady steps, by step and by stage.

    `slower_ms` is by how much the median step with a retry takes longer than the median one without; None where either
    kind is too rare to tell.
    """

    num_steps: int
    middle_step: int
    by_step: tuple[tuple[int, int], ...]
    by_stage: tuple[tuple[str, int], ...]
    slower_ms: float | None = None
    slower_interval_ms: tuple[float, float] | None = None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Follow the counter; raises NotRecorded where no step read it, as without CUDA."""
        times = run.get(StepTimes)
        by_step = retries_by_step([time.record for time in times.every])
        if by_step is None:
            raise NotRecorded(
                "steps.jsonl holds no count of the CUDA allocator's retries; record the run on a CUDA device."
            )
        found = [(time.step, by_step[time.step]) for time in times.steady if time.step in by_step]
        stages = sum((rises for _, rises in found), start=Counter[str]())
        retried = {step for step, _ in found}
        slower = _slower(
            [time.total_ms for time in times.steady if time.step in retried],
            [time.total_ms for time in times.steady if time.step not in retried],
        )
        return cls(
            num_steps=len(times.steady),
            middle_step=times.steady[len(times.steady) // 2].step if times.steady else 0,
            by_step=tuple((step, rises.total()) for step, rises in found),
            by_stage=tuple(stages.most_common()),
            slower_ms=slower[0] if slower else None,
            slower_interval_ms=slower[1] if slower else None,
        )

    @property
    def num_retries(self) -> int:
        """In all steady steps."""
        return sum(count for _, count in self.by_step)

    @property
    def goes_on(self) -> bool:
        """Whether both halves of the steps had one."""
        return bool(self.by_step) and self.by_step[0][0] < self.middle_step <= self.by_step[-1][0]

    @property
    def share_of_steps(self) -> float:
        """The share of the steady steps that had one."""
        return len(self.by_step) / max(1, self.num_steps)


def retries_by_step(records: Sequence[StepRecord]) -> dict[int, Counter[str]] | None:
    """For each step with a retry, how many each stage had; None where the counter was never read."""
    found: dict[int, Counter[str]] = {}
    before: int | None = None
    for record in records:
        for here in record.memory:
            if here.num_retries is None:
                continue
            if before is not None and here.num_retries > before:
                stages = found.setdefault(record.step, Counter())
                stages[STAGE_BEFORE.get(here.boundary, "other")] += here.num_retries - before
            before = here.num_retries
    return None if before is None else found


def retried_sites(device: DeviceHistory) -> Counter[str | None]:
    """How often each line's request was tried again in a recorded history; None is a thread without Python."""
    return Counter(device.lines.site(entry.frames) for entry in retried_requests(device.history))


def retried_requests(history: History) -> Iterator[Entry]:
    """The requests that came with memory being given back, and were served after it."""
    _, emptied_at = capacity_of(history)
    is_retry = has_grown = False
    for index, entry in enumerate(history.entries):
        if entry.action in RELEASES:
            if index == 0 or history.entries[index - 1].action not in RELEASES:
                is_retry, has_grown = index not in emptied_at, False
        elif entry.action in GROWTHS:
            has_grown = entry.action != "oom"
        elif entry.action == "alloc":
            if is_retry and has_grown:
                yield entry
            is_retry = has_grown = False


def _slower(retried: Sequence[float], others: Sequence[float]) -> tuple[float, tuple[float, float]] | None:
    """The difference of the medians with its 95 % interval."""
    if min(len(retried), len(others)) < LEAST_COMPARED:
        return None
    _, interval_ms = quantile_change_intervals(others, retried, 0.5)
    return statistics.median(retried) - statistics.median(others), interval_ms
