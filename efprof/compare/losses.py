"""Whether two sides have the same losses: to the bit, within what base's own runs differ by, or up to a step."""

import math
from collections.abc import Mapping, Sequence

from efprof.model import MetricChange, Report, Series, SeriesLine, Verdict

NAME = "loss"
"""By which a budget calls it."""
Losses = dict[int, float]
"""By step; inf of a loss that is no number."""


def compare_losses(
    bases: Sequence[Report], heads: Sequence[Report], budgets: Mapping[str, float]
) -> tuple[MetricChange, ...]:
    """One row, the steps whose loss differs; it gates where a budget asks for that.

    There is none where the sides share no step with a loss, unless a budget asks for it.
    """
    of_base, of_head = [[_losses(report) for report in side] for side in (bases, heads)]
    steps = sorted(set.intersection(*map(set, (*of_base, *of_head))))
    if not steps and NAME not in budgets:
        return ()
    own = [step for step in steps if len({run[step] for run in of_base}) > 1]
    outside = [step for step in steps if not _is_within(step, of_base, of_head)]
    verdict, reason = _judged(steps, own, outside, len(bases))
    is_unseeded = bool(own) and own[0] == steps[0]
    budget = budgets.get(NAME)
    is_gate = budget is not None and not is_unseeded
    return (
        MetricChange(
            name=NAME,
            label="steps whose loss differs",
            unit="count",
            base_median=float(len(own)),
            base_spread=math.nan,
            head_median=float(len(outside)),
            head_spread=math.nan,
            effect=None,
            interval=None,
            verdict="worse" if is_gate and verdict == "unclear" and outside else verdict,
            budget=budget,
            is_over_budget=is_gate and len(outside) > (budget or 0.0) * len(steps),
            reason=reason,
        ),
    )


def loss_picture(bases: Sequence[Report], heads: Sequence[Report]) -> Series | None:
    """Those of all runs over each other; None where none is known."""
    lines = []
    for side, reports in (("base", bases), ("head", heads)):
        for number, report in enumerate(reports, 1):
            losses = _losses(report)
            label = f"{side}, run {number}" if len(reports) > 1 else side
            lines.append(SeriesLine(label=label, x=tuple(map(float, losses)), y=tuple(losses.values())))
    return Series(title="Loss", y_label="loss", y_unit="", lines=tuple(lines)) if any(one.x for one in lines) else None


def _judged(steps: Sequence[int], own: Sequence[int], outside: Sequence[int], num_runs: int) -> tuple[Verdict, str]:
    if not steps:
        return "unclear", "There is no step whose loss is known on both sides."
    if not outside:
        how = "within what base's own runs differ by" if own else "equal to the bit"
        return "same", f"In {len(steps):,} steps losses are {how}."
    if own and own[0] == steps[0]:
        return "unclear", "Base differs from base at its first step: the program sets no seed."
    beside = "" if num_runs > 1 else "; one run each does not tell what base's own runs differ by"
    return "unclear", f"Losses differ from step {outside[0]:,} on{beside}."


def _is_within(step: int, bases: Sequence[Losses], heads: Sequence[Losses]) -> bool:
    """No further from base's runs than these are from each other."""
    own = [run[step] for run in bases]
    spread = max(own) - min(own) if max(own) < math.inf else 0.0
    return all(min(own) - spread <= run[step] <= max(own) + spread for run in heads)


def _losses(report: Report) -> Losses:
    steps = report.measurements.timeline.steps
    return {one.step: one.loss if math.isfinite(one.loss) else math.inf for one in steps if one.loss is not None}
