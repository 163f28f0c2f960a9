"""The longest stretch of updates whose learning rate was zero, and the line that is to blame for the rate."""

from itertools import groupby
from typing import Self

from efprof.artifacts.events import OptimizerBuilt, ScheduleBuilt, events_of
from efprof.facts.run.run import Run
from efprof.model import NotRecorded, frozen_dataclass

ZERO = 1e-12
"""A schedule that multiplies its way down leaves a rounding error."""


@frozen_dataclass
class LearningRates:
    """Of the steps that tell a rate, those in the longest stretch in which each tells zero; empty where there is none.

    `rate_before` is the last one above zero before it, `has_recovered` whether one came after it.
    """

    num_read: int
    zero_steps: tuple[int, ...]
    rate_before: float | None
    has_recovered: bool
    num_steps: int
    site: str | None
    schedule: str | None
    """What built the rate last before it, and its class where that is a schedule."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read the steps recorded in full; raises NotRecorded where none tells a rate."""
        rates = [(one.step, one.learning_rate) for one in run.steps if one.is_full and one.learning_rate is not None]
        if not rates:
            raise NotRecorded("steps.jsonl holds no step with a learning rate.")
        stretches = [tuple(step for step, _ in rows) for is_zero, rows in groupby(rates, _is_zero) if is_zero]
        longest = max(stretches, key=lambda steps: steps[-1] - steps[0], default=())
        first, last = (longest[0], longest[-1]) if longest else (0, 0)
        schedules = [one for one in events_of(run.rank_folder, ScheduleBuilt) if one.step <= first and one.site]
        optimizers = [one.site for one in events_of(run.rank_folder, OptimizerBuilt) if one.step <= first and one.site]
        return cls(
            num_read=len(rates),
            zero_steps=longest,
            rate_before=next((rate for step, rate in reversed(rates) if step < first), None),
            has_recovered=any(step > last for step, _ in rates),
            num_steps=run.steps[-1].step + 1,
            site=schedules[-1].site if schedules else next(reversed(optimizers), None),
            schedule=schedules[-1].schedule if schedules else None,
        )


def _is_zero(row: tuple[int, float]) -> bool:
    return row[1] <= ZERO
