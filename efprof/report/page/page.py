"""What the templates ask of a report: the pictures of a run, and the parts of a finding's card."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from efprof.model import (
    Alternative,
    Alternatives,
    Change,
    Evaluation,
    Evidence,
    Finding,
    Gain,
    Report,
    SegmentMap,
    Series,
    SeriesLine,
    Snippet,
    SourceLine,
)
from efprof.report.charts.chart import Chart, has_curve
from efprof.report.charts.evidence_charts import series_chart
from efprof.report.words.ranking import last_read_step, median_step_ms, peak_bytes, share_of
from efprof.report.words.wording import (
    change_sides,
    gain_verb,
    is_lower_bound,
    peak_saved,
    show,
    show_interval,
    until_phrase,
)
from efprof.units import format_share, in_brackets

SMALLEST_SHARE: Final = 0.0005
"""A smaller share would read 0.0 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeLine:
    """A numbered source line of a card."""

    number: int
    text: str
    is_blamed: bool


def charts_of(evidence: Sequence[Evidence]) -> list[Chart]:
    """The curves among the evidence, as far as there is anything to see."""
    charts = [series_chart(one) for one in evidence if isinstance(one, Series)]
    return [chart for chart in charts if has_curve(chart)]


def of_kind(evidence: Sequence[Evidence], kind: str) -> list[Evidence]:
    """The evidence whose class has that name."""
    return [one for one in evidence if type(one).__name__ == kind]


def in_order(evidence: Alternatives) -> list[Alternative]:
    """The recorded one first, the others by what they need, those that fail last."""
    return sorted(
        evidence.alternatives,
        key=lambda one: (one.role != "recorded", one.is_out_of_memory, one.value, one.role != "best"),
    )


def device_evidence(report: Report) -> tuple[Evidence, ...]:
    """What a CUDA snapshot shows, or an estimate; empty where nothing is known, or a card has its map."""
    is_shown = any(isinstance(one, SegmentMap) for one in _evidence_of_findings(report))
    return () if is_shown else report.measurements.device


def window_chart(report: Report) -> Chart | None:
    """Memory by what it is for through an allocation window, where no card has this picture."""
    series = report.measurements.window_memory
    if series is None or series in _evidence_of_findings(report):
        return None
    return next(iter(charts_of([series])), None)


def evaluation_chart(evaluations: Sequence[Evaluation]) -> Chart | None:
    """Allocated memory by the batches evaluated, of the evaluation with the highest peak."""
    highest = max(evaluations, key=lambda each: each.peak_bytes, default=None)
    if highest is None or not highest.peak_bytes:  # or the allocator told nothing
        return None
    num_batches, num_bytes = zip(*highest.memory, strict=True)
    line = SeriesLine(label=highest.when, x=tuple(map(float, num_batches)), y=tuple(map(float, num_bytes)))
    series = Series(
        title="Memory through an evaluation",
        x_label="batches evaluated",
        x_unit="",
        y_label="allocated",
        y_unit="bytes",
        lines=(line,),
    )
    return next(iter(charts_of([series])), None)


def code_lines(snippet: Snippet) -> tuple[CodeLine, ...]:
    """The lines of a snippet with their numbers, without the indentation that they share."""
    lines = textwrap.dedent("\n".join(line.rstrip() for line in snippet.lines)).split("\n")
    return tuple(
        CodeLine(number=number, text=text, is_blamed=number == snippet.highlighted)
        for number, text in enumerate(lines, start=snippet.first_line)
    )


def blamed_code(finding: Finding) -> tuple[CodeLine, ...]:
    """The blamed line among others, or alone; nothing where its text is not known."""
    blame = finding.blame
    shown = next((one for one in _snippets(finding) if _shows(one, blame)), None)
    if shown is not None:
        return code_lines(shown)
    return (CodeLine(number=blame.line, text=blame.text, is_blamed=True),) if blame.text else ()


def other_snippets(finding: Finding) -> list[Snippet]:
    """The source that the finding shows beside the blamed line."""
    snippets = _snippets(finding)
    shown = next((one for one in snippets if _shows(one, finding.blame)), None)
    return [one for one in snippets if one is not shown]


def gain_lines(finding: Finding, report: Report) -> list[tuple[str, str]]:
    """For each resource that the fix saves `saves up to 12.3 ms per step`, and what is known of that number."""
    gain, lines = finding.gain, []
    if gain.step_ms is not None:
        share = share_of(gain.step_ms, median_step_ms(report))
        details = _joined(show_interval(gain.step_ms_interval, "ms"), share, "of the median step")
        lines.append((f"{gain_verb(gain)} {show(gain.step_ms, 'ms')} per step", details))
    if gain.peak_bytes is not None:
        share, last = share_of(gain.peak_bytes, peak_bytes(report)), last_read_step(report)
        whole = "of the peak" if last is None else f"of the peak up to step {last:,}"
        details = _joined(_peak_interval(gain), share, whole)
        lines.append((f"{gain_verb(gain)} {peak_saved(gain)} of peak memory", details))
    return lines


def diff_of(change: Change) -> tuple[list[str], list[str]]:
    """The lines that go and those that come, without the indentation that they share."""
    old, new = (side.splitlines() for side in change_sides(change))
    shown = textwrap.dedent("\n".join([*old, *new])).split("\n")
    return shown[: len(old)], shown[len(old) :] if new else []


def _evidence_of_findings(report: Report) -> list[Evidence]:
    return [one for audit in report.audits for finding in audit.findings for one in finding.evidence]


def _snippets(finding: Finding) -> list[Snippet]:
    """None of a file that is not here."""
    return [one for one in finding.evidence if isinstance(one, Snippet) and one.lines]


def _shows(snippet: Snippet, blame: SourceLine) -> bool:
    return snippet.file == blame.file and snippet.highlighted == blame.line


def _peak_interval(gain: Gain) -> str:
    """Of a lower limit the estimate behind it as well, and the steps that both hold for."""
    ends = show_interval(gain.peak_bytes_interval, "bytes")
    estimate = f"{show(gain.peak_bytes, 'bytes')}{in_brackets(ends)}" if is_lower_bound(gain) else ends
    return f"{estimate}{until_phrase(gain)}" if estimate else ""


def _joined(interval: str, share: float | None, whole: str) -> str:
    of_whole = f"{format_share(share)} {whole}" if share and share >= SMALLEST_SHARE else ""
    return ", ".join(filter(None, (interval, of_whole)))
