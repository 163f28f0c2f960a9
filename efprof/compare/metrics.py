"""The metrics of two runs side by side, paired by their names."""

import math
from dataclasses import replace
from itertools import chain

from efprof.compare.verdicts import Judgement, Side, Statistic, interquartile_range, rule_for
from efprof.model import Metric, MetricChange, Report

FAILED_ENDINGS = ("raised", "out_of_memory", "killed")
"""How a run ends that did not get through; a person's Ctrl-C says nothing of the code."""


ENOUGH_STEPS = 0.8
"""A run with less than this share of the other's steps may not have come to its highest one."""


def compare_metrics(base: Report, head: Report) -> tuple[MetricChange, ...]:
    """Every metric that either run has, in the order of the base; the gate looks at some in two ways."""
    of_base, of_head = _by_name(base), _by_name(head)
    names = dict.fromkeys([*of_base, *of_head])
    changes = chain.from_iterable(_changes(of_base.get(name), of_head.get(name)) for name in names)
    return tuple(_doubted(change, base.run.num_steps, head.run.num_steps) for change in changes)


def has_failed(report: Report) -> bool:
    """Whether the recorded command did not get through."""
    return report.run.ended in FAILED_ENDINGS


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
