"""A report in at most twenty lines of plain text; and as Markdown, for a pull request or an issue."""

import html
import re
from collections.abc import Iterable, Sequence

from efprof.model import Report
from efprof.report.verdict import (
    RankedFinding,
    counts_phrase,
    describe_verdict,
    gpu_phrase,
    grouped_checks,
    header_items,
    measured_phrase,
    needs_phrase,
    overhead_phrase,
    rank_findings,
    run_time_phrase,
)
from efprof.report.wording import (
    applicability_phrase,
    change_diff,
    change_name,
    code_spans,
    one_line,
    sentence,
    shorten,
    shorten_path,
)
from efprof.units import format_count, in_brackets

MAX_FINDINGS = 4
"""Two lines each: with the twelve other lines there can be, the summary stays within twenty."""
MAX_WARNINGS = 1
MAX_WIDTH = 240
"""Of a sentence, two lines of a wide terminal: past that it hides its neighbours."""
VERDICT_WIDTH = 2 * MAX_WIDTH
"""What one came for: who filled memory, and what to do, come last in a long sentence."""
PATH_WIDTH = 60


def render_text(report: Report) -> str:
    lines = [
        "efprof   " + "   ".join(shorten_path(item, PATH_WIDTH) for item in header_items(report.run)),
        *_verdict_lines(report),
        counts_phrase(report) + in_brackets(needs_phrase(report)),
    ]
    ranked = rank_findings(report)
    for item in ranked[:MAX_FINDINGS]:
        finding = item.finding
        where = shorten_path(str(finding.blame), PATH_WIDTH)
        lines.append(f"{item.rank:3}  {finding.severity.upper():6}  {shorten(finding.headline, MAX_WIDTH)}")
        lines.append(f"{'':13}{where}   {shorten(item.gain, MAX_WIDTH)}")
    if num_more := len(ranked[MAX_FINDINGS:]):
        lines.append(f"     and {num_more} more in the page")
    if report.run.num_steps:
        measured = f"Measured: {measured_phrase(report)}. {run_time_phrase(report)}"
        lines += [shorten(measured, VERDICT_WIDTH), overhead_phrase(report)]
    lines += [shorten(gpu_phrase(report), MAX_WIDTH)] if gpu_phrase(report) else []
    held = report.measurements.memory_sentence
    lines += [f"Memory: {shorten(held, VERDICT_WIDTH)}"] if held and f"Verdict  {held}" not in lines else []
    lines += [shorten(f"Warning: {warning}", MAX_WIDTH) for warning in report.warnings[:MAX_WARNINGS]]
    if num_more := len(report.warnings[MAX_WARNINGS:]):
        lines.append(f"and {format_count(num_more, 'more warning')} in the page")
    return "\n".join(lines) + "\n"


def render_markdown(report: Report) -> str:
    """The page's words, order and numbers, without its pictures."""
    checks = [
        (", ".join(map(code, names)), audit.status.replace("_", " "), prose(audit.reason))
        for audit, names in grouped_checks(report)
    ]
    measured = f"{measured_phrase(report)}. {run_time_phrase(report)} {overhead_phrase(report)}"
    parts = [
        f"# efprof: {escape(report.run.name)}",
        " · ".join(escape(item) for item in header_items(report.run)),
        _verdict(report),
        escape(counts_phrase(report) + in_brackets(needs_phrase(report))) + ".",
        *(render_finding(item) for item in rank_findings(report)),
        *([f"## Measured\n\n{prose(sentence(measured))}"] if report.run.num_steps else []),
        *([prose(gpu_phrase(report))] if gpu_phrase(report) else []),
        *(f"> Warning: {escape(warning)}" for warning in report.warnings),
        "## Checks\n\n" + table(("Check", "Status", "What it looked at"), checks),
    ]
    return "\n\n".join(parts) + "\n"


def render_github(report: Report) -> str:
    """A warning of GitHub's for each finding, at its line."""
    findings = [item.finding for item in rank_findings(report)]
    return "".join(annotation(str(one.blame), one.headline, one.message) for one in findings)


def render_finding(item: RankedFinding) -> str:
    """One finding as Markdown, without its evidence."""
    finding = item.finding
    parts = [
        f"## {item.rank}. {finding.severity.capitalize()}: {prose(finding.headline)}",
        f"{code(str(finding.blame))} in {code(finding.blame.function)}: {code(finding.blame.text)}",
        prose(f"{finding.message} {finding.why}"),
        f"**Gain** {escape(item.gain)}. {prose(sentence(finding.gain.explanation))}",
        f"**Fix** {prose(finding.fix.summary)} ({applicability_phrase(finding.fix)})",
    ]
    for change in finding.fix.changes:
        parts.append(f"{code(change_name(change))}\n\n" + code_block("diff", "\n".join(change_diff(change))))
    return "\n\n".join(parts)


def escape(text: str) -> str:
    """Text from outside on one line, with everything that Markdown or HTML would read as markup escaped."""
    return _escape_line(one_line(text))


def prose(text: str) -> str:
    """Text from outside on one line, escaped but for what stands between backticks."""
    return "".join(code(piece) if is_code else _escape_line(piece) for piece, is_code in code_spans(one_line(text)))


def code(text: str) -> str:
    """Text from outside as a code span, fenced by more backticks than it holds."""
    line = one_line(text).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{ticks} {line} {ticks}" if "`" in line else f"`{line}`"


def code_block(language: str, text: str) -> str:
    """Text from outside as a fenced block, fenced by more backticks than it holds."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}"


def annotation(location: str, title: str, message: str) -> str:
    """A warning in the form that GitHub's runners read, at `train.py:12`; ends in a newline."""
    file, _, line = location.rpartition(":")
    properties = {"file": file, "line": line, "title": title}
    named = ",".join(f"{name}={_percent(value, ':,')}" for name, value in properties.items())
    return f"::warning {named}::{_percent(message)}\n"


def _percent(text: str, special: str = "") -> str:
    return "".join(f"%{ord(sign):02X}" if sign in "%\r\n" + special else sign for sign in one_line(text))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells that are escaped already."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _verdict_lines(report: Report) -> list[str]:
    verdict = describe_verdict(report)
    where = ""
    if verdict.blame is not None:
        where = f"   {shorten_path(str(verdict.blame), PATH_WIDTH)}   {shorten(verdict.blame.text, MAX_WIDTH)}".rstrip()
    return [
        f"Verdict  {shorten(verdict.verdict, VERDICT_WIDTH)}",
        f"Why      {shorten(verdict.why, VERDICT_WIDTH)}{where}",
        f"Next     {shorten(verdict.next, VERDICT_WIDTH)}",
        *(f"         {shorten(command, VERDICT_WIDTH)}" for command in verdict.commands),
    ]


def _escape_line(line: str) -> str:
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", html.escape(line, quote=False))


def _verdict(report: Report) -> str:
    verdict = describe_verdict(report)
    where = f" at {code(str(verdict.blame))}: {code(verdict.blame.text)}" if verdict.blame else ""
    lines = [
        f"**Verdict** {prose(verdict.verdict)}",
        f"**Why** {prose(verdict.why)}{where}",
        f"**Next** {prose(verdict.next)}",
    ]
    commands = code_block("sh", "\n".join(verdict.commands)) if verdict.commands else ""
    return "\n\n".join(line for line in (*lines, commands) if line)
