"""The metrics of two sides, of one run or several each, and when a change counts: one rule per unit."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy

from efprof.model import Metric, MetricChange, Report, Verdict, frozen_dataclass
from efprof.units import MIB, format_bytes, format_ms

Samples = tuple[float, ...]
Side = tuple[Samples, ...]
"""Of each run of it."""
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

Measured: 70 fresh processes of one training on a shared two-core machine (2,415 pairs): beside a busy neighbour a run
takes up to 2.9 times as long (20th percentile; mean 3.5 times) from its first step to its last. False alarms in 20th
percentile and mean: 4.9 and 20 % of pairs at a minimum of +100 %, none and 2.8 % at +200 %.
"""

MINIMUM_CPU_EFFECT = 0.5
"""A neighbour takes the processor away but no CPU time: 60 such processes at a load of 3 to 5 (1,770 pairs) were at
most 1.31 times apart; false alarms in 20th percentile and mean: 3 and 3 % of pairs at +20 %, none and none at +50 %."""

DEVIATIONS = 3.0
"""Standard deviations between blocks of a run's own steps that a change must exceed too: by chance, 1 in 370 does."""

MINIMUM_TIME_MS = 0.1
"""A change below this is the recorder's own hooks and the clock, however many times more it is."""

MINIMUM_PEAK_BYTES = 2 * MIB
MINIMUM_PEAK_SHARE = 0.005
"""The larger of the two: peaks repeat within that, but where libraries choose their work spaces anew."""

MINIMUM_GROWTH = 8 * MIB / 1000
"""Bytes per step. Less costs under 1 GiB in 100,000 steps."""

MINIMUM_COUNT = 0.5
"""Per step: totals of two runs of the same code never differed by as much. Totals of a whole run are whole numbers, so
that one more always counts."""
SAME_COUNT = 0.05
"""Per step: totals of 46 % of pairs of runs of the same code differ by less. What lies between the two is unclear."""

EXACT = ("memory_growth_bytes_per_step", "scalar_reads_per_step")
"""Metrics that gate where every step of several runs was recorded in full."""

FAILED_ENDINGS = ("raised", "out_of_memory", "killed")
"""How a run ends that did not get through; a person's Ctrl-C says nothing of the code."""

ENOUGH_STEPS = 0.8
"""A run with less than this share of the other's steps may not have come to its highest one."""


@frozen_dataclass
class Judgement:
    """A verdict with its reason; `interval` bounds the effect (head over base minus one) where noise is known."""

    verdict: Verdict
    reason: str
    interval: tuple[float, float] | None = None


def percentile_20(samples: Sequence[float]) -> float:
    """What a step takes when nothing disturbs it: interference only ever adds."""
    return float(numpy.quantile(samples, 0.2))


def interquartile_range(samples: Sequence[float]) -> float:
    low, high = numpy.quantile(samples, (0.25, 0.75))
    return float(high - low)


MEDIAN = (("", statistics.median),)
STATISTICS: dict[str, tuple[tuple[str, Estimator], ...]] = {
    "ms": (("20th percentile", percentile_20), ("mean", statistics.fmean)),
    "bytes": (("highest", max),),
    "count": (("mean", statistics.fmean),),
}
"""By unit, with their names; else it is the median. The mean of times sees slow-downs that come now and then, to which
low percentiles are blind; of a time that never gates the median is shown."""


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


def compare_metrics(
    bases: Sequence[Report], heads: Sequence[Report], budgets: Mapping[str, float]
) -> tuple[MetricChange, ...]:
    """Every metric that a run has, in the order of the first one's; a time that gates in two ways."""
    of_bases, of_heads = (list(map(_by_name, side)) for side in (bases, heads))
    num_steps = tuple(min(report.run.num_steps for report in side) for side in (bases, heads))
    known = {name: metric for run in reversed((*of_bases, *of_heads)) for name, metric in run.items()}
    changes = []
    for name in dict.fromkeys(name for run in (*of_bases, *of_heads) for name in run):
        metric = replace(known[name], budget=budgets.get(name, _budget(known[name], len(bases))))
        base, head = (tuple(_finite(run.get(name)) for run in side) for side in (of_bases, of_heads))
        is_shown = metric.unit == "ms" and metric.budget is None
        ways = MEDIAN if is_shown else STATISTICS.get(metric.unit, MEDIAN)
        for place, (way, estimate) in enumerate(ways):
            row = _change(metric, base, head, way, estimate, num_steps)
            changes.append(replace(row, name=f"{name}_{way}") if place else row)
    return tuple(changes)


def has_failed(report: Report) -> bool:
    return report.run.ended in FAILED_ENDINGS


def _budget(metric: Metric, num_runs: int) -> float | None:
    """Several runs a side have every step in full, and are no measure of time."""
    if num_runs == 1:
        return metric.budget
    return None if metric.unit == "ms" else 0.0 if metric.name in EXACT else metric.budget


def _by_name(report: Report) -> dict[str, Metric]:
    failed = Metric(
        name="failed_runs", label="runs that failed", unit="count", samples=(float(has_failed(report)),), budget=0.0
    )
    return {metric.name: metric for metric in (*report.measurements.metrics, failed)}


def _finite(metric: Metric | None) -> Samples:
    return tuple(filter(math.isfinite, metric.samples)) if metric else ()


def _change(
    metric: Metric, base: Side, head: Side, way: str, estimate: Estimator, num_steps: tuple[int, ...]
) -> MetricChange:
    before, after = (statistics.fmean(map(estimate, side)) if all(side) else math.nan for side in (base, head))
    judgement = _judge(metric, base, head, estimate, num_steps)
    effect = after / before - 1 if before > 0 and all(head) else None
    is_worse = metric.budget is not None and judgement.verdict == "worse"
    return MetricChange(
        name=metric.name,
        label=f"{metric.label} ({way})" if way and max(map(len, (*base, *head))) > 1 else metric.label,
        unit=metric.unit,
        base_median=before,
        base_spread=_spread(base),
        head_median=after,
        head_spread=_spread(head),
        effect=effect,
        interval=judgement.interval,
        verdict=judgement.verdict,
        budget=metric.budget,
        is_over_budget=is_worse and (effect is None or effect > (metric.budget or 0.0)),
        reason=judgement.reason,
    )


def _spread(side: Side) -> float:
    """Of all steps of the side's runs."""
    samples = [sample for run in side for sample in run]
    return interquartile_range(samples) if samples else math.nan


def _judge(metric: Metric, base: Side, head: Side, estimate: Estimator, num_steps: tuple[int, ...]) -> Judgement:
    """By the rule of the unit, between the runs of both sides that are closest; a unit without one is not judged."""
    if not (all(base) and all(head)):
        where = "head" if all(base) else "base" if all(head) else "either run"
        return Judgement(verdict="unclear", reason=f"Not measured in {where}.")
    befores, afters = ([estimate(run) for run in side] for side in (base, head))
    before, after = statistics.fmean(befores), statistics.fmean(afters)
    distances = [abs(one - other) for one in befores for other in afters]
    is_apart = min(afters) > max(befores) or max(afters) < min(befores)
    verdict: Verdict = "worse" if after > before else "better"
    match metric.unit:
        case "ms" if len(base) > 1:
            return Judgement(verdict="unclear", reason="Whole runs one after another tell nothing of time.")
        case "ms":
            least = MINIMUM_CPU_EFFECT if metric.name == "cpu_ms" else MINIMUM_TIME_EFFECT
            return _judge_time(base[0], head[0], estimate, least)
        case "bytes":
            least = max(MINIMUM_PEAK_BYTES, MINIMUM_PEAK_SHARE * min(before, after))
            doubt = "; 5 to 16 % of such changes are false alarms" if len(base) == 1 else ""
            reason = f"Counts from {format_bytes(least)} on{doubt}."
        case "bytes_per_step":
            least, reason = MINIMUM_GROWTH, f"Counts from {format_bytes(MINIMUM_GROWTH)} per step on."
        case "count":
            least = MINIMUM_COUNT if len(base) == 1 else SAME_COUNT
            reason = f"Runs of the same code differ by less than {least}."
        case _:
            return Judgement(verdict="unclear", reason="There is no rule for this unit.")
    if not is_apart or min(distances) < least:
        verdict = "unclear" if max(distances) >= (SAME_COUNT if metric.unit == "count" else least) else "same"
    shorter = "better" if num_steps[0] > num_steps[1] else "worse"
    if metric.unit == "bytes" and verdict == shorter and min(num_steps) < ENOUGH_STEPS * max(num_steps):
        steps = f"Base has {num_steps[0]:,} steps and head {num_steps[1]:,}"
        return Judgement(verdict="unclear", reason=f"{steps}: the highest of fewer steps is no saving.")
    return Judgement(verdict=verdict, reason=reason)


def _judge_time(base: Samples, head: Samples, estimate: Estimator, minimum_effect: float) -> Judgement:
    before, after = estimate(base), estimate(head)
    if max(before, after) < MINIMUM_TIME_MS:
        return Judgement(verdict="same", reason=f"Less than {format_ms(MINIMUM_TIME_MS)} on both sides.")
    if abs(after - before) < MINIMUM_TIME_MS:
        return Judgement(verdict="unclear", reason=f"Less than {format_ms(MINIMUM_TIME_MS)} apart.")
    deviations = [block_deviation(side, estimate) for side in (base, head)]
    known = [deviation for deviation in deviations if deviation is not None]
    if len(known) < 2 or min(before, after) <= 0:
        counts = f"{len(base)} and {len(head)} steady steps"
        return Judgement(verdict="unclear", reason=f"Too little to judge by: {counts}.")
    change = math.log(after / before)
    noise = max(math.log1p(minimum_effect), DEVIATIONS * math.hypot(*known))
    interval = math.expm1(change - noise), math.expm1(change + noise)
    if abs(change) <= noise:
        reason = f"One run a side cannot tell times less than {math.exp(noise):.1f} times apart."
        return Judgement(verdict="unclear", reason=reason, interval=interval)
    reason = f"More than {math.exp(noise):.1f} times apart, more than a busy machine was seen to explain."
    return Judgement(verdict="worse" if change > 0 else "better", reason=reason, interval=interval)
