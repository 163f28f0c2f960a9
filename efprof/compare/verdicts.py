"""The metrics of two runs side by side, and when a change counts: one rule per unit, for one run on each side."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy

from efprof.model import Metric, MetricChange, Report, Verdict
from efprof.units import MIB, format_bytes, format_ms

Estimator = Callable[[Sequence[float]], float]
"""From a run's samples, one per step and at least one, to one number in their unit."""

NUM_BLOCKS = 10
"""Blocks a run's steps are cut into: as many as a test for leaks needs to tell their floor from their noise."""

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
"""The larger of the two: peaks repeat within that, but where libraries choose their work spaces anew."""

MINIMUM_GROWTH_BYTES_PER_STEP = 8 * MIB / 1000
"""Less costs under 1 GiB in 100,000 steps."""

SAME_COUNT = 0.05
CLEAR_COUNT = 0.5
"""Per step: totals of two runs of the same code differ by a little in 46 % of pairs, never by the second.
Totals of a whole run are whole numbers, so that one more is always clear."""

FAILED_ENDINGS = ("raised", "out_of_memory", "killed")
"""How a run ends that did not get through; a person's Ctrl-C says nothing of the code."""

ENOUGH_STEPS = 0.8
"""A run with less than this share of the other's steps may not have come to its highest one."""


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
    """What a step takes when nothing disturbs it: interference only ever adds."""
    return float(numpy.quantile(samples, 0.2))


def interquartile_range(samples: Sequence[float]) -> float:
    low, high = numpy.quantile(samples, (0.25, 0.75))
    return float(high - low)


def block_deviation(samples_ms: Sequence[float], estimate: Estimator) -> float | None:
    """How far apart stretches of one run are: the standard deviation of log estimates of equal blocks of steps.

    It is not divided by the root of their number, as it would be for independent blocks: what disturbs a shared
    machine lasts longer than a run (the autocorrelation of whole runs was .5 to .66, measured). None
    where the run is too short to be cut into blocks.
    """
    num_blocks = min(NUM_BLOCKS, len(samples_ms) // MIN_STEPS_IN_BLOCK)
    if num_blocks < MIN_BLOCKS:
        return None
    blocks = numpy.array_split(numpy.asarray(samples_ms), num_blocks)
    return statistics.stdev(math.log(max(SMALLEST_MS, estimate(block.tolist()))) for block in blocks)


def compare_metrics(base: Report, head: Report) -> tuple[MetricChange, ...]:
    """Every metric that either run has, in the order of the base; the gate looks at some in two ways."""
    of_base, of_head = _by_name(base), _by_name(head)
    names = dict.fromkeys([*of_base, *of_head])
    changes = chain.from_iterable(_changes(of_base.get(name), of_head.get(name)) for name in names)
    return tuple(_doubted(change, base.run.num_steps, head.run.num_steps) for change in changes)


def has_failed(report: Report) -> bool:
    return report.run.ended in FAILED_ENDINGS


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


def _direction(change: float) -> Verdict:
    return "worse" if change > 0 else "better"


def _by_name(report: Report) -> dict[str, Metric]:
    failed = Metric(
        name="failed_runs", label="runs that failed", unit="count", samples=(float(has_failed(report)),), budget=0.0
    )
    return {metric.name: metric for metric in (*report.measurements.metrics, failed)}


def _changes(base: Metric | None, head: Metric | None) -> list[MetricChange]:
    """One row per statistic: the gated ones, the first under the metric's own name, then the one only shown."""
    metric = head or base
    assert metric is not None
    rule = rule_for(metric)
    gated = rule.gated if metric.budget is not None else ()
    statistics = gated if rule.shown in gated else (*gated, rule.shown)
    return [
        _change(
            base,
            head,
            statistic,
            metric.budget if statistic in gated else None,
            name=f"{metric.name}_{statistic.name}" if place else metric.name,
        )
        for place, statistic in enumerate(statistics)
    ]


def _change(
    base: Metric | None, head: Metric | None, statistic: Statistic, budget: float | None, *, name: str
) -> MetricChange:
    metric = head or base
    assert metric is not None
    sides = _side(base, statistic), _side(head, statistic)
    judgement = _judge(metric, *sides)
    base_value, head_value = (side.value if side else math.nan for side in sides)
    effect = head_value / base_value - 1 if base_value > 0 and not math.isnan(head_value) else None
    is_over = budget is not None and judgement.verdict == "worse" and (effect is None or effect > budget)
    is_one_of_many = any(side is not None and len(side.samples) > 1 for side in sides)
    return MetricChange(
        name=name,
        label=f"{metric.label} ({statistic.phrase})" if statistic.phrase and is_one_of_many else metric.label,
        unit=metric.unit,
        base_median=base_value,
        base_spread=interquartile_range(sides[0].samples) if sides[0] else math.nan,
        head_median=head_value,
        head_spread=interquartile_range(sides[1].samples) if sides[1] else math.nan,
        effect=effect,
        interval=judgement.interval,
        verdict=judgement.verdict,
        budget=budget,
        is_over_budget=is_over,
        reason=judgement.reason,
    )


def _doubted(change: MetricChange, base_steps: int, head_steps: int) -> MetricChange:
    """The highest of fewer steps is lower without any merit: then no run is better, or worse, for having had more."""
    shorter = min(base_steps, head_steps)
    if change.unit != "bytes" or shorter >= ENOUGH_STEPS * max(base_steps, head_steps):
        return change
    if change.verdict != ("better" if shorter == head_steps else "worse"):
        return change
    reason = f"Base has {base_steps:,} steps and head {head_steps:,}: the highest of fewer steps is no saving."
    return replace(change, verdict="unclear", is_over_budget=False, reason=reason)


def _side(metric: Metric | None, statistic: Statistic) -> Side | None:
    """The finite samples; None where the run measured nothing."""
    samples = tuple(filter(math.isfinite, metric.samples)) if metric else ()
    return Side(samples=samples, statistic=statistic) if samples else None


def _judge(metric: Metric, base: Side | None, head: Side | None) -> Judgement:
    if base and head:
        return rule_for(metric).judge(base, head)
    where = "either run" if not base and not head else "base" if not base else "head"
    return Judgement(verdict="unclear", reason=f"Not measured in {where}.")


_MEDIAN = Statistic(name="median", phrase="", estimate=statistics.median)
_MEAN = Statistic(name="mean", phrase="mean", estimate=statistics.fmean)
"""It sees slow-downs that come now and then, to which low percentiles are blind."""
_FASTEST_FIFTH = Statistic(name="p20", phrase="20th percentile", estimate=percentile_20)
_HIGHEST = Statistic(name="highest", phrase="highest", estimate=max)
_UNKNOWN = Rule(
    shown=_MEDIAN,
    gated=(_MEDIAN,),
    judge=lambda *_: Judgement(verdict="unclear", reason="There is no rule for this unit."),
)
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
