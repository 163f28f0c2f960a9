"""What a comparison says, in the words that every rendering of it shares; in plain text and in Markdown."""

import math
import shlex
from collections.abc import Iterable, Sequence

from efprof.model import Comparison, FindingChange, MetricChange, Presence, RunIdentity, Verdict
from efprof.report.text_forms import annotation, code, escape, prose, table
from efprof.report.verdict import FOREIGN, revision
from efprof.report.wording import one_line, shorten, shorten_path, show
from efprof.units import format_change, format_count

CHANGES: tuple[Presence, ...] = ("added", "unchecked", "gone", "kept")
TABLE_CAPTION = (
    "Of each run the median over its steps, where the name says no other statistic; IQR is the interquartile range of "
    "the steps. A change is head over base, with its interval where there is one."
)
NOT_MEASURED = "not measured"
MAX_LOCATION = 60
MAX_FINDINGS = 8
"""Of a kind, in a comment."""
COLUMNS = ("Metric", "Base", "Head", "Change", "Verdict", "What it rests on")


def comparison_verdict(comparison: Comparison) -> tuple[Verdict, str]:
    """One word and its sentence: worse if any metric is; better only if one is and none is worse; same only if all are.

    Metrics that gate decide; the others only where no metric gates. The first finding that was added is told with it.
    """
    word, headline = _metric_verdict(comparison)
    headline = " ".join(filter(None, [headline, _time_blame(comparison), _about_losses(comparison)]))
    added = next((finding for finding in comparison.findings if finding.change == "added"), None)
    return word, f"{headline} Added: {added.headline} ({added.location})." if added else headline


def time_hint(comparison: Comparison) -> str:
    """What one run each cannot tell, with the command that can; empty where the sides took turns."""
    if comparison.num_runs > 1 or not any(metric.unit == "ms" for metric in comparison.metrics):
        return ""
    base, head = (run.branch or (run.commit or "")[:7] for run in (comparison.base, comparison.head))
    refs = f"{base} {head}" if base and head and base != head else "BASE HEAD"
    command = shlex.join(comparison.head.command) or "COMMAND"
    return f"One run each tells nothing of time; this does, by turns: efprof compare {refs} -- {one_line(command)}"


def _about_losses(comparison: Comparison) -> str:
    """That they differ more than base's own runs do, which no metric that gates says."""
    losses = [metric for metric in comparison.metrics if metric.name == "loss" and metric.verdict != "same"]
    is_told = comparison.num_runs > 1 and losses and losses[0].reason.startswith("Losses differ")
    return losses[0].reason if is_told else ""


def _time_blame(comparison: Comparison) -> str:
    """Where a slower step lost its time."""
    if comparison.slower_at:
        lines = (f"{show(line.longer_ms, 'ms')} longer at {line.blame}" for line in comparison.slower_at)
        return f"Each step takes {', '.join(lines)}, which head changed."
    return f"Most of that lies in {comparison.slower_stage}." if comparison.slower_stage else ""


def _metric_verdict(comparison: Comparison) -> tuple[Verdict, str]:
    gates = [metric for metric in comparison.metrics if metric.budget is not None]
    is_told = any(metric.verdict != "same" or metric.name != "failed_runs" for metric in gates)
    metrics = gates if is_told else comparison.metrics  # that neither failed says nothing of what was measured
    given = {metric.verdict for metric in metrics}
    if given == {"same"}:
        return "same", "Head is the same as base within what these runs can tell."
    word: Verdict = "worse" if "worse" in given else "better" if "better" in given else "unclear"
    measured = [metric for metric in metrics if not math.isnan(metric.base_median + metric.head_median)]
    named = _named(metric for metric in measured if metric.verdict == word)
    said = "These runs cannot tell whether head differs from base" if word == "unclear" else f"Head is {word} than base"
    return word, f"{said}: {named}." if named else f"{said}."


def metric_cells(metric: MetricChange) -> tuple[str, ...]:
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
    low, high = metric.interval
    return f"{format_change(metric.effect)} ({format_change(low)} to {format_change(high)})"


def findings_by_change(comparison: Comparison) -> tuple[tuple[str, tuple[FindingChange, ...]], ...]:
    """The findings under each kind of change, in the order given; `unchecked` is there only where some are."""
    found = {change: tuple(f for f in comparison.findings if f.change == change) for change in CHANGES}
    return tuple((change, findings) for change, findings in found.items() if findings or change != "unchecked")


def side_phrase(run: RunIdentity) -> str:
    """A side in a few words: its name, revision, steps, end and run id, what is known of them."""
    ended = "" if run.ended == FOREIGN else run.ended.replace("_", " ")
    items = (run.name, revision(run), format_count(run.num_steps, "step"), ended, run.run_id)
    return ", ".join(dict.fromkeys(one_line(item) for item in items if item))


def render_comparison_text(comparison: Comparison) -> str:
    """The headline, the metrics in columns, the findings that came and went; no colour."""
    word, headline = comparison_verdict(comparison)
    rows = [COLUMNS[:5], *(metric_cells(metric)[:5] for metric in comparison.metrics)]
    rows = [tuple(one_line(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{word.upper()}: {headline}",
        f"base   {side_phrase(comparison.base)}",
        f"head   {side_phrase(comparison.head)}",
        *filter(None, [time_hint(comparison)]),
        *(f"Compared although they differ: {one_line(difference)}" for difference in comparison.differences),
        "",
        *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
        "",
    ]
    changed = [(change, finding) for change, findings in findings_by_change(comparison) for finding in findings]
    width = max((len(change) for change, _ in changed), default=0)
    for change, finding in changed:
        where = shorten_path(finding.location, MAX_LOCATION)
        lines.append(f"{change:{width}}  {shorten(finding.headline, 100)}   {where}   {one_line(finding.audit_id)}")
    return "\n".join(lines).rstrip("\n") + "\n"


def render_comparison_markdown(comparison: Comparison) -> str:
    """A comment on a pull request, of some 40 lines: what changed is seen at once, the rest is folded."""
    word, headline = comparison_verdict(comparison)
    parts = [f"## efprof: {word}", escape(headline)]
    parts.append(f"- base: {escape(side_phrase(comparison.base))}\n- head: {escape(side_phrase(comparison.head))}")
    if hint := time_hint(comparison):
        parts.append(escape(hint))
    if comparison.differences:
        parts.append("Compared although they differ: " + "; ".join(escape(one) for one in comparison.differences) + ".")
    changed = [metric for metric in comparison.metrics if metric.verdict in ("worse", "better")]
    others = [metric for metric in comparison.metrics if metric not in changed]
    if changed:
        parts.append(_metric_table(changed))
    kept = []
    for change, findings in findings_by_change(comparison):
        rows = [f"- {prose(f.headline)}, {code(f.location)}: {prose(f.message)}" for f in findings]
        if rows and change in ("added", "gone"):
            more = [f"- and {len(rows) - MAX_FINDINGS} more"] if len(rows) > MAX_FINDINGS else []
            parts.append("\n".join([f"### Findings {change}\n", *rows[:MAX_FINDINGS], *more]))
        elif rows:
            kept.append("\n".join([f"Findings {change}:\n", *rows]))
    rest = "\n\n".join([TABLE_CAPTION, _metric_table(others), *kept])
    parts.append(
        f"<details><summary>{format_count(len(others), 'metric')} without a change</summary>\n\n{rest}\n\n</details>"
    )
    return "\n\n".join(parts) + "\n"


def render_comparison_github(comparison: Comparison) -> str:
    """A warning of GitHub's for each finding that was added, at its line."""
    added = [finding for finding in comparison.findings if finding.change == "added"]
    return "".join(annotation(finding.location, finding.headline, finding.message) for finding in added)


def _metric_table(metrics: Sequence[MetricChange]) -> str:
    return table(COLUMNS, [tuple(map(escape, metric_cells(metric))) for metric in metrics])


def _named(metrics: Iterable[MetricChange]) -> str:
    return ", ".join(
        f"{one.label} from {show(one.base_median, one.unit)} to {show(one.head_median, one.unit)}"
        if one.effect is None
        else f"{one.label} {change_with_interval(one)}"
        for one in metrics
    )


def _side(median: float, spread: float, unit: str) -> str:
    if math.isnan(median):
        return NOT_MEASURED
    return show(median, unit) + (f" (IQR {show(spread, unit)})" if math.isfinite(spread) and spread else "")
