"""When a change between two runs counts: one rule per unit, for one run on each side."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy

from efprof.model import Metric, Verdict
from efprof.units import MIB, format_bytes, format_ms

Estimator = Callable[[Sequence[float]], float]
"""From a run's samples, one per step and at least one, to one number in their unit."""

NUM_BLOCKS = 10
"""Blocks a run's steps are cut into: the floor test for leaks in statistics.md section 1.8 uses as many."""

MIN_STEPS_IN_BLOCK = 5
"""A 20th percentile of fewer than five steps is their minimum."""

MIN_BLOCKS = 4
"""The standard deviation of fewer says nothing."""

SMALLEST_MS = 1e-3
"""A clock that counts microseconds cannot tell shorter times from none; it keeps logarithms finite."""

MINIMUM_TIME_EFFECT = 2.0
"""With one run a side, three times slower or faster is the least that is not the machine.

Measured: 70 fresh processes of one training on a shared two-core machine whose load went from 0.5 to 5 (2,415 pairs):
a run beside a busy neighbour takes up to 2.9 times as long (20th percentile; mean 3.5 times) from its first
step to its last, so that its own steps (1 % apart) do not show it. False alarms in 20th percentile and mean: 4.9
and 20 % of pairs at a minimum of +100 %, none and 2.8 % at +200 %.
"""

MINIMUM_CPU_EFFECT = 0.5
"""A neighbour takes the processor away but no CPU time: 60 such processes at a load of 3 to 5 (1,770 pairs) were at
most 1.31 times apart; false alarms in 20th percentile and mean: 3 and 3 % of pairs at +20 %, none and none at +50 %."""

DEVIATIONS = 3.0
"""Standard deviations between blocks of a run's own steps that a change must exceed too: by chance, 1 in 370 does."""

WIDEST_INTERVAL = 10.0
"""Times apart: an interval that reaches further either way says nothing, and is not shown."""

MINIMUM_TIME_MS = 0.1
"""A change below this is the recorder's own hooks and the clock, however many times more it is."""

MINIMUM_PEAK_BYTES = 2 * MIB
MINIMUM_PEAK_SHARE = 0.005
"""The threshold for peaks in statistics.md section 1.8, the larger of the two."""

MINIMUM_GROWTH_BYTES_PER_STEP = 8 * MIB / 1000
"""The threshold for leaks in statistics.md section 1.8."""

SAME_COUNT = 0.05
CLEAR_COUNT = 0.5
"""Per step: totals of two runs of the same code differ by a little in 46 % of pairs, never by the second
(statistics.md section 1.8). Totals of a whole run are whole numbers, so that one more is always clear."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistic:
    """A way to make one number of a run's samples; `phrase` names it to people, empty for the median."""

    name: str
    phrase: str
    estimate: Estimator


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One run's samples of a metric, and what the statistic makes of them."""

    samples: tuple[float, ...]
    statistic: Statistic

    @property
    def value(self) -> float:
        """In the metric's unit."""
        return self.statistic.estimate(self.samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A verdict with its reason; `interval` bounds the effect (head over base minus one) where noise is known."""

    verdict: Verdict
    reason: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How metrics of a unit are compared: what is shown of every metric, what a gate looks at, and who judges."""

    shown: Statistic
    gated: tuple[Statistic, ...]
    judge: Callable[[Side, Side], Judgement]


def rule_for(metric: Metric) -> Rule:
    """The rule of its name or else of its unit; a unit without one is shown and never judged."""
    return _RULES_BY_NAME.get(metric.name) or _RULES_BY_UNIT.get(metric.unit, _UNKNOWN)


def percentile_20(samples: Sequence[float]) -> float:
    """What a step takes when nothing disturbs it: interference only ever adds (statistics.md section 1.4)."""
    return float(numpy.quantile(samples, 0.2))


def interquartile_range(samples: Sequence[float]) -> float:
    """The width of the middle half of the samples, in their unit."""
    low, high = numpy.quantile(samples, (0.25, 0.75))
    return float(high - low)


def block_deviation(samples_ms: Sequence[float], estimate: Estimator) -> float | None:
    """How far apart stretches of one run are: the standard deviation of log estimates of equal blocks of steps.

    It is not divided by the root of their number, as it would be for independent blocks: what disturbs a shared
    machine lasts longer than a run (autocorrelation of whole runs .5 to .66, statistics.md section 1.2). None
    where the run is too short to be cut into blocks.
    """
    num_blocks = min(NUM_BLOCKS, len(samples_ms) // MIN_STEPS_IN_BLOCK)
    if num_blocks < MIN_BLOCKS:
        return None
    blocks = numpy.array_split(numpy.asarray(samples_ms), num_blocks)
    return statistics.stdev(math.log(max(SMALLEST_MS, estimate(block.tolist()))) for block in blocks)


def _judge_time(base: Side, head: Side, *, minimum_effect: float) -> Judgement:
    if max(base.value, head.value) < MINIMUM_TIME_MS:
        return Judgement(verdict="same", reason=f"Less than {format_ms(MINIMUM_TIME_MS)} on both sides.")
    if abs(head.value - base.value) < MINIMUM_TIME_MS:
        return Judgement(verdict="unclear", reason=f"Less than {format_ms(MINIMUM_TIME_MS)} apart.")
    deviations = [block_deviation(side.samples, side.statistic.estimate) for side in (base, head)]
    known = [deviation for deviation in deviations if deviation is not None]
    if len(known) < len(deviations) or min(base.value, head.value) <= 0:
        counts = f"{len(base.samples)} and {len(head.samples)} steady steps"
        return Judgement(verdict="unclear", reason=f"Too little to judge by: {counts}.")
    change = math.log(head.value / base.value)
    noise = max(math.log1p(minimum_effect), DEVIATIONS * math.hypot(*known))
    is_shown = noise <= math.log(WIDEST_INTERVAL)
    interval = (math.expm1(change - noise), math.expm1(change + noise)) if is_shown else None
    if abs(change) <= noise:
        reason = f"One run a side cannot tell times less than {math.exp(noise):.1f} times apart."
        return Judgement(verdict="unclear", reason=reason, interval=interval)
    reason = f"More than {math.exp(noise):.1f} times apart, more than a busy machine was seen to explain."
    return Judgement(verdict=_direction(change), reason=reason, interval=interval)


def _judge_peak(base: Side, head: Side) -> Judgement:
    least = max(MINIMUM_PEAK_BYTES, MINIMUM_PEAK_SHARE * min(base.value, head.value))
    reason = (
        f"Counts from {format_bytes(least)} on; with one run a side, 5 to 16 % of such changes are false alarms "
        "where libraries choose their workspaces anew in each run."
    )
    return _beyond(least, head.value - base.value, reason)


def _judge_growth(base: Side, head: Side) -> Judgement:
    reason = f"Counts from {format_bytes(MINIMUM_GROWTH_BYTES_PER_STEP)} per step on."
    return _beyond(MINIMUM_GROWTH_BYTES_PER_STEP, head.value - base.value, reason)


def _beyond(least: float, change: float, reason: str) -> Judgement:
    return Judgement(verdict=_direction(change) if abs(change) >= least else "same", reason=reason)


def _judge_count(base: Side, head: Side) -> Judgement:
    change = head.value - base.value
    if abs(change) < SAME_COUNT:
        return Judgement(verdict="same", reason="Counted, not sampled.")
    if abs(change) < CLEAR_COUNT:
        return Judgement(verdict="unclear", reason=f"Two runs of the same code differ by less than {CLEAR_COUNT}.")
    return Judgement(verdict=_direction(change), reason="Counted, not sampled.")


def _judge_nothing(base: Side, head: Side) -> Judgement:
    del base, head
    return Judgement(verdict="unclear", reason="There is no rule for this unit.")


def _direction(change: float) -> Verdict:
    return "worse" if change > 0 else "better"


_MEDIAN = Statistic(name="median", phrase="", estimate=statistics.median)
_MEAN = Statistic(name="mean", phrase="mean", estimate=statistics.fmean)
"""It sees slow-downs that come now and then, to which low percentiles are blind (statistics.md section 1.4)."""
_FASTEST_FIFTH = Statistic(name="p20", phrase="20th percentile", estimate=percentile_20)
_HIGHEST = Statistic(name="highest", phrase="highest", estimate=max)

_UNKNOWN = Rule(shown=_MEDIAN, gated=(_MEDIAN,), judge=_judge_nothing)
_TIME = Rule(
    shown=_MEDIAN,
    gated=(_FASTEST_FIFTH, _MEAN),
    judge=partial(_judge_time, minimum_effect=MINIMUM_TIME_EFFECT),
)
_RULES_BY_NAME = {"cpu_ms": replace(_TIME, judge=partial(_judge_time, minimum_effect=MINIMUM_CPU_EFFECT))}
_RULES_BY_UNIT = {
    "ms": _TIME,
    "bytes": Rule(shown=_HIGHEST, gated=(_HIGHEST,), judge=_judge_peak),
    "bytes_per_step": Rule(shown=_MEDIAN, gated=(_MEDIAN,), judge=_judge_growth),
    "count": Rule(shown=_MEAN, gated=(_MEAN,), judge=_judge_count),
}
