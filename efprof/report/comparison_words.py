"""What a comparison says, in the words that every rendering of it shares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from efprof.model import Comparison, FindingChange, MetricChange, RunIdentity, Verdict
from efprof.report.verdict import revision
from efprof.report.wording import count_of, one_line, show
from efprof.units import format_change, format_factor, format_signed_percent

CHANGES: Final[tuple[Literal["added", "unchecked", "gone", "kept"], ...]] = ("added", "unchecked", "gone", "kept")
TABLE_CAPTION: Final = (
    "Of each run the median over its steps, where the name says no other statistic; IQR is the interquartile range of "
    "the steps. A change is head over base, with its interval where there is one."
)
NOT_MEASURED: Final = "not measured"
COLUMNS: Final = ("Metric", "Base", "Head", "Change", "Verdict", "What it rests on")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonVerdict:
    """One word, and the sentences under it."""

    word: Verdict
    headline: str
    details: tuple[str, ...]


def comparison_verdict(comparison: Comparison) -> ComparisonVerdict:
    """Worse if any metric is; better only if one is and none is worse; same only if every metric is.

    Metrics that gate decide; the others only where no metric gates.
    """
    metrics = [metric for metric in comparison.metrics if metric.budget is not None] or comparison.metrics
    by_word = {word: [metric for metric in metrics if metric.verdict == word] for word in _WORDS}
    word: Verdict = "unclear"
    if by_word["worse"] or comparison.is_failed:
        word = "worse"
    elif by_word["better"]:
        word = "better"
    elif metrics and len(by_word["same"]) == len(metrics):
        word = "same"
    largest = _largest_certain(comparison.metrics)
    return ComparisonVerdict(
        word=word, headline=_headline(word, by_word, largest), details=_details(comparison, by_word, largest)
    )


def metric_cells(metric: MetricChange) -> tuple[str, str, str, str, str, str]:
    """The row of a metric under `COLUMNS`; medians with their interquartile ranges."""
    return (
        metric.label,
        _side(metric.base_median, metric.base_spread, metric.unit),
        _side(metric.head_median, metric.head_spread, metric.unit),
        change_with_interval(metric),
        metric.verdict + (", over budget" if metric.is_over_budget else ""),
        metric.reason,
    )


def change_with_interval(metric: MetricChange) -> str:
    """`+12.0 % (+9.1 % to +14.8 %)`; where the base is zero no ratio can be formed."""
    if metric.effect is None and math.isnan(metric.base_median + metric.head_median):
        return ""
    if metric.effect is None:
        return "none" if metric.base_median == metric.head_median else "no ratio"
    if metric.interval is None:
        return format_change(metric.effect)
    write = format_factor if metric.effect > 1 else format_signed_percent
    low, high = metric.interval
    return f"{write(metric.effect)} ({write(low)} to {write(high)})"


def findings_by_change(comparison: Comparison) -> tuple[tuple[str, tuple[FindingChange, ...]], ...]:
    """The findings under each kind of change, in the order given; `unchecked` is there only where some are."""
    found = {change: tuple(f for f in comparison.findings if f.change == change) for change in CHANGES}
    return tuple((change, findings) for change, findings in found.items() if findings or change != "unchecked")


def side_phrase(run: RunIdentity) -> str:
    """A side in a few words: its name, revision, steps and run id."""
    items = (run.name, revision(run), count_of(run.num_steps, "step"), run.ended.replace("_", " "), run.run_id)
    return ", ".join(one_line(item) for item in items if item)


_WORDS: Final[tuple[Verdict, ...]] = ("better", "worse", "same", "unclear")


def _headline(word: Verdict, by_word: dict[Verdict, list[MetricChange]], largest: MetricChange | None) -> str:
    """What decides, and the largest change that is certain, whether or not it gates."""
    decides = [metric for metric in by_word[word] if metric is not largest]
    if largest is None:
        return f"{_sentence(word, _named(decides))}."
    ungated = "" if largest in by_word[largest.verdict] else " without a gate"
    if largest.verdict == word:
        named = [_named([largest]) + ungated, *(_named([metric]) for metric in decides)]
        return f"{_sentence(word, ', '.join(named))}."
    return f"{_sentence(word, _named(decides))}; but {largest.verdict}{ungated}: {_named([largest])}."


def _sentence(word: Verdict, named: str) -> str:
    match word:
        case "worse" | "better" if named:
            return f"Head is {word} than base: {named}"
        case "worse":
            return "Head is over its budget"
        case "same":
            return "Head is the same as base within what these runs can tell"
        case _:
            return "These runs cannot tell whether head differs from base"


def _largest_certain(metrics: Sequence[MetricChange]) -> MetricChange | None:
    """By the ratio of the sides; what was nothing or became nothing changed most. The first of several."""
    gated = [metric.name for metric in metrics if metric.budget is not None]
    certain = [
        metric
        for metric in metrics
        if metric.verdict in ("better", "worse")
        and (metric.budget is not None or not any(metric.name.startswith(f"{name}_") for name in gated))
    ]
    return max(certain, key=_size, default=None)


def _size(metric: MetricChange) -> float:
    return abs(math.log1p(metric.effect)) if metric.effect is not None and metric.effect > -1 else math.inf


def _details(
    comparison: Comparison, by_word: dict[Verdict, list[MetricChange]], largest: MetricChange | None
) -> tuple[str, ...]:
    """What the headline leaves out; it names `largest`, and every metric that decides."""
    sentences = []
    over = [metric.label for metric in comparison.metrics if metric.is_over_budget]
    if over:
        sentences.append(f"Over budget: {', '.join(over)}.")
    better = [metric for metric in by_word["better"] if metric is not largest]
    if by_word["worse"] and better:
        sentences.append(f"Better all the same: {_named(better)}.")
    ungated = [
        metric
        for metric in comparison.metrics
        if metric.verdict == "worse" and metric not in by_word["worse"] and metric is not largest
    ]
    if ungated:
        sentences.append(f"Worse without a gate: {_named(ungated)}.")
    if by_word["unclear"]:
        sentences.append(f"Unclear: {', '.join(metric.label for metric in by_word['unclear'])}.")
    counts = [f"{len(found)} {change}" for change, found in findings_by_change(comparison)]
    sentences.append(f"Findings: {', '.join(counts)}.")
    return tuple(sentences)


def _named(metrics: list[MetricChange]) -> str:
    return ", ".join(f"{metric.label} {_change_or_sides(metric)}" for metric in metrics)


def _change_or_sides(metric: MetricChange) -> str:
    if metric.effect is not None:
        return change_with_interval(metric)
    return f"from {show(metric.base_median, metric.unit)} to {show(metric.head_median, metric.unit)}"


def _side(median: float, spread: float, unit: str) -> str:
    if math.isnan(median):
        return NOT_MEASURED
    return show(median, unit) + (f" (IQR {show(spread, unit)})" if math.isfinite(spread) and spread else "")
