"""A report in at most twenty lines of plain text."""

from typing import Final

from efprof.model import Report
from efprof.report.ranking import RankedFinding, rank_findings
from efprof.report.tables import device_phrase
from efprof.report.verdict import (
    count_audits,
    counts_phrase,
    describe_verdict,
    header_items,
    measured_phrase,
    overhead_phrase,
)
from efprof.report.wording import count_of, gain_phrase, one_line, shorten, shorten_path

MAX_FINDINGS: Final = 4
"""Two lines each: with the twelve other lines there can be, the summary stays within twenty."""
MAX_WARNINGS: Final = 1
MAX_WIDTH: Final = 240
"""Two lines of a wide terminal: past that a line hides its neighbours."""
VERDICT_WIDTH: Final = 2 * MAX_WIDTH
"""What one came for: who filled memory, and what to do, come last in a long sentence."""
PATH_WIDTH: Final = 60


def render_text(report: Report) -> str:
    """The header, the three lines of verdict, the findings and what was measured; no path, no colour."""
    lines = [
        "efprof   " + "   ".join(shorten_path(item, PATH_WIDTH) for item in header_items(report.run)),
        *_verdict_lines(report),
        counts_phrase(count_audits(report)),
        *_finding_lines(rank_findings(report)),
        *_measured_lines(report),
        *_warning_lines(report.warnings),
    ]
    return "\n".join(lines) + "\n"


def _measured_lines(report: Report) -> list[str]:
    if not report.run.num_steps:
        return []
    measured = f"{measured_phrase(report)}{device_phrase(report.measurements.metrics)}"
    return [shorten(f"Measured: {measured}.", VERDICT_WIDTH), overhead_phrase(report)]


def _verdict_lines(report: Report) -> list[str]:
    verdict = describe_verdict(report)
    where = ""
    if verdict.blame is not None:
        where = f"   {shorten_path(str(verdict.blame), PATH_WIDTH)}   {one_line(verdict.blame.text)}"
    lines = [f"Verdict  {verdict.verdict}", f"Why      {verdict.why}{where}", f"Next     {verdict.next}"]
    lines += [f"         {command}" for command in verdict.commands]
    return [_cut(line.rstrip(), VERDICT_WIDTH) for line in lines]


def _cut(line: str, width: int = MAX_WIDTH) -> str:
    """The line cut to this width, after a word: no number loses digits. Label and indentation stay."""
    if len(line) <= width:
        return line
    whole_words = line[: width - 3].rpartition(" ")[0].rstrip(" ,;:")
    return (whole_words if len(whole_words) > width // 2 else line[: width - 3]) + "..."


def _finding_lines(ranked: tuple[RankedFinding, ...]) -> list[str]:
    lines = []
    for item in ranked[:MAX_FINDINGS]:
        finding = item.finding
        where = shorten_path(str(finding.blame), PATH_WIDTH)
        title = f"{item.rank:3}  {finding.severity.upper():6}  {one_line(finding.headline)}"
        lines += [_cut(title), _cut(f"{'':13}{where}   {gain_phrase(finding.gain)}")]
    if len(ranked) > MAX_FINDINGS:
        lines.append(f"     and {len(ranked) - MAX_FINDINGS} more in the page")
    return lines


def _warning_lines(warnings: tuple[str, ...]) -> list[str]:
    lines = [shorten(f"Warning: {warning}", MAX_WIDTH) for warning in warnings[:MAX_WARNINGS]]
    if len(warnings) > MAX_WARNINGS:
        lines.append(f"and {count_of(len(warnings) - MAX_WARNINGS, 'more warning')} in the page")
    return lines
