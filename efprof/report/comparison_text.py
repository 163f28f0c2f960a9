"""A comparison in plain text and in Markdown."""

from efprof.model import Comparison
from efprof.report.comparison_words import (
    COLUMNS,
    TABLE_CAPTION,
    comparison_verdict,
    findings_by_change,
    metric_cells,
    side_phrase,
)
from efprof.report.markdown import code, escape, prose, table
from efprof.report.wording import one_line, shorten, shorten_path

MAX_LOCATION = 60


def render_comparison_text(comparison: Comparison) -> str:
    """The headline, the metrics in columns, the findings that came and went; no colour."""
    verdict = comparison_verdict(comparison)
    lines = [
        f"{verdict.word.upper()}: {verdict.headline}",
        *verdict.details,
        f"base   {side_phrase(comparison.base)}",
        f"head   {side_phrase(comparison.head)}",
        *(f"Compared although they differ: {one_line(difference)}" for difference in comparison.differences),
        "",
        *_aligned([COLUMNS[:5], *(metric_cells(metric)[:5] for metric in comparison.metrics)]),
        "",
    ]
    changed = [(change, finding) for change, findings in findings_by_change(comparison) for finding in findings]
    width = max((len(change) for change, _ in changed), default=0)
    for change, finding in changed:
        where = shorten_path(finding.location, MAX_LOCATION)
        lines.append(f"{change:{width}}  {shorten(finding.headline, 100)}   {where}   {one_line(finding.audit_id)}")
    return "\n".join(lines).rstrip("\n") + "\n"


def render_comparison_markdown(comparison: Comparison) -> str:
    """The same as a Markdown comment fits a pull request."""
    verdict = comparison_verdict(comparison)
    parts = [f"## efprof: {verdict.word}", escape(verdict.headline), escape(" ".join(verdict.details))]
    parts.append(f"- base: {escape(side_phrase(comparison.base))}\n- head: {escape(side_phrase(comparison.head))}")
    if comparison.differences:
        parts.append("Compared although they differ: " + "; ".join(escape(one) for one in comparison.differences) + ".")
    parts.append(TABLE_CAPTION)
    parts.append(table(COLUMNS, [tuple(map(escape, metric_cells(metric))) for metric in comparison.metrics]))
    for change, findings in findings_by_change(comparison):
        if findings:
            rows = "\n".join(f"- {prose(f.headline)}, {code(f.location)}: {prose(f.message)}" for f in findings)
            parts.append(f"### Findings {change}\n\n{rows}")
    return "\n\n".join(parts) + "\n"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    rows = [tuple(one_line(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
