"""The metrics of two sides, of one run or several each, and when a change counts: one rule per unit."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy

from efprof.model import Metric, MetricChange, Report, Verdict, frozen_dataclass
from efprof.units import MIB, format_bytes

Samples = tuple[float, ...]
Side = tuple[Samples, ...]
"""Of each run of it."""
Estimator = Callable[[Sequence[float]], float]
"""From a run's samples, one per step and at least one, to one number in their unit."""

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


NOTHING_OF_TIME = "Whole runs tell nothing of time."
"""Measured: 70 fresh processes of one training on a shared two-core machine (2,415 pairs): beside a busy neighbour
a run takes up to 2.9 times as long (20th percentile; mean 3.5 times), and its own steps do not show it."""


@frozen_dataclass
class Judgement:
    """A verdict with its reason."""

    verdict: Verdict
    reason: str


def interquartile_range(samples: Sequence[float]) -> float:
    low, high = numpy.quantile(samples, (0.25, 0.75))
    return float(high - low)


MEDIAN = ("", statistics.median)
STATISTICS: dict[str, tuple[str, Estimator]] = {"bytes": ("highest", max), "count": ("mean", statistics.fmean)}
"""By unit, with its name; else it is the median."""


def compare_metrics(
    bases: Sequence[Report], heads: Sequence[Report], budgets: Mapping[str, float]
) -> tuple[MetricChange, ...]:
    """Every metric that a run has, in the order of the first one's."""
    of_bases, of_heads = (list(map(_by_name, side)) for side in (bases, heads))
    num_steps = tuple(min(report.run.num_steps for report in side) for side in (bases, heads))
    known = {name: metric for run in reversed((*of_bases, *of_heads)) for name, metric in run.items()}
    changes = []
    for name in dict.fromkeys(name for run in (*of_bases, *of_heads) for name in run):
        metric = replace(known[name], budget=budgets.get(name, _budget(known[name], len(bases))))
        base, head = (tuple(_finite(run.get(name)) for run in side) for side in (of_bases, of_heads))
        changes.append(_change(metric, base, head, *STATISTICS.get(metric.unit, MEDIAN), num_steps))
    return tuple(changes)


def has_failed(report: Report) -> bool:
    return report.run.ended in FAILED_ENDINGS


def _budget(metric: Metric, num_runs: int) -> float | None:
    """Several runs a side have every step in full; none of them is a measure of time."""
    if metric.unit == "ms":
        return None
    return 0.0 if num_runs > 1 and metric.name in EXACT else metric.budget


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
        interval=None,
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
        case "ms":
            return Judgement(verdict="unclear", reason=NOTHING_OF_TIME)
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
