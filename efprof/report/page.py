"""What the page shows, as plain data: cards, pictures and tables that the templates only lay out."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from efprof.model import (
    Alternatives,
    Change,
    Finding,
    Gain,
    Intervals,
    MemoryMap,
    Narrative,
    Numbers,
    Report,
    SegmentMap,
    Series,
    Snippet,
    SourceLine,
    Table,
)
from efprof.report.alternative_bars import AlternativeBars, alternative_bars
from efprof.report.chart import Chart, TrackChart, has_curve
from efprof.report.evidence_charts import series_chart, tracks_chart
from efprof.report.ranking import RankedFinding, last_read_step, median_step_ms, peak_bytes, rank_findings, share_of
from efprof.report.segment_picture import SegmentPicture, segment_picture
from efprof.report.wording import (
    anchor_of,
    change_name,
    change_sides,
    changes_to_make,
    count_of,
    gain_verb,
    is_lower_bound,
    peak_saved,
    show,
    show_interval,
    until_phrase,
)
from efprof.units import format_share, in_brackets

MAX_TABLE_ROWS: Final = 200
MAX_MEMORY_BARS: Final = 24
SMALLEST_SHARE: Final = 0.0005
"""A smaller share would read 0.0 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A chart with the id of its place on the page."""

    id: str
    chart: Chart | TrackChart


@dataclass(frozen=True, kw_only=True, slots=True)
class GainLine:
    """One resource a fix saves: `saves up to 12.3 ms per step`, and what is known of that number."""

    amount: str
    details: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeLine:
    """A numbered source line of a card."""

    number: int
    text: str
    is_blamed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeBlock:
    """A change as a small diff; `copied` is what the copy button takes."""

    name: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    copied: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TableView:
    """A table whose columns and cells are (text, is a number)."""

    title: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[tuple[str, bool], ...], ...]
    num_left_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBars:
    """A memory map as bars: label, bytes, width in percent of the largest, whether it is the culprit."""

    title: str
    bars: tuple[tuple[str, int, float, bool], ...]
    rest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A finding, its evidence sorted into what is shown at once and what is opened."""

    anchor: str
    ranked: RankedFinding
    gains: tuple[GainLine, ...]
    code: tuple[CodeLine, ...]
    pictures: tuple[Picture, ...]
    memory: tuple[MemoryBars, ...]
    segments: tuple[SegmentPicture, ...]
    alternatives: tuple[AlternativeBars, ...]
    changes: tuple[ChangeBlock, ...]
    numbers: tuple[Numbers, ...]
    tables: tuple[TableView, ...]
    snippets: tuple[tuple[Snippet, tuple[CodeLine, ...]], ...]
    narratives: tuple[Narrative, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSection:
    """What a CUDA snapshot shows, where no finding shows it already; of a run without one, an estimate."""

    title: str
    paragraphs: tuple[str, ...]
    """Of an estimate, what it leaves out; empty where nothing was estimated."""
    pictures: tuple[Picture, ...]
    numbers: tuple[Numbers, ...]
    segments: tuple[SegmentPicture, ...]
    alternatives: tuple[AlternativeBars, ...]


def make_device_section(report: Report) -> DeviceSection | None:
    """The memory of each device; None where nothing is known of it, or a card has its map."""
    evidence = report.measurements.device
    found = [one for audit in report.audits for finding in audit.findings for one in finding.evidence]
    if not evidence or any(isinstance(one, SegmentMap) for one in found):
        return None
    charts = [series_chart(one) for one in evidence if isinstance(one, Series)]
    maps = [one for one in evidence if isinstance(one, SegmentMap)]
    doubts = next((one for one in evidence if isinstance(one, Narrative)), None)
    return DeviceSection(
        title=doubts.title if doubts else "Device memory",
        paragraphs=doubts.paragraphs if doubts else (),
        pictures=tuple(Picture(id=f"picture-device-{n}", chart=one) for n, one in enumerate(charts) if has_curve(one)),
        numbers=tuple(one for one in evidence if isinstance(one, Numbers)),
        segments=tuple(segment_picture(one, f"device-segments-{n}") for n, one in enumerate(maps)),
        alternatives=tuple(alternative_bars(one) for one in evidence if isinstance(one, Alternatives)),
    )


def make_cards(report: Report) -> tuple[Card, ...]:
    """A card for every finding, in ranked order, each with an anchor of its own."""
    make = card_maker(report)
    return tuple(make(item) for item in rank_findings(report))


def card_maker(report: Report) -> Callable[[RankedFinding], Card]:
    """Makes cards whose gains are shares of this run's step and peak; equal keys get numbered anchors."""
    taken: dict[str, int] = {}

    def make(item: RankedFinding) -> Card:
        anchor = anchor_of(item.key)
        taken[anchor] = taken.get(anchor, 0) + 1
        return _card(item, anchor if taken[anchor] == 1 else f"{anchor}-{taken[anchor]}", report)

    return make


def code_lines(snippet: Snippet) -> tuple[CodeLine, ...]:
    """The lines of a snippet with their numbers, without the indentation that they share."""
    lines = textwrap.dedent("\n".join(line.rstrip() for line in snippet.lines)).split("\n")
    return tuple(
        CodeLine(number=number, text=text, is_blamed=number == snippet.highlighted)
        for number, text in enumerate(lines, start=snippet.first_line)
    )


def table_view(table: Table) -> TableView:
    """The numbers in the unit of their column, and which columns hold any."""
    units = (*table.units, *("" for _ in table.columns))
    shown = table.rows[:MAX_TABLE_ROWS]
    numeric = [any(not isinstance(cell, str) for cell in column) for column in zip(*shown, strict=True)]
    return TableView(
        title=table.title,
        columns=tuple(zip(table.columns, [*numeric, *(False for _ in table.columns)], strict=False)),
        rows=tuple(
            tuple(
                (cell, False) if isinstance(cell, str) else (show(cell, unit), True)
                for cell, unit in zip(row, units, strict=False)
            )
            for row in shown
        ),
        num_left_out=len(table.rows) - len(shown),
    )


def _card(item: RankedFinding, anchor: str, report: Report) -> Card:
    finding = item.finding
    evidence = finding.evidence
    charts = [_chart_of(one) for one in evidence if isinstance(one, Series | Intervals)]
    charts = [chart for chart in charts if isinstance(chart, TrackChart) or has_curve(chart)]
    maps = [one for one in evidence if isinstance(one, SegmentMap)]
    snippets = [one for one in evidence if isinstance(one, Snippet) and one.lines]  # none where the file is not here
    blamed = next((one for one in snippets if _shows(one, finding.blame)), None)
    return Card(
        anchor=anchor,
        ranked=item,
        gains=_gain_lines(finding, report),
        code=code_lines(blamed) if blamed else _blame_line(finding.blame),
        pictures=tuple(Picture(id=f"{anchor}-picture-{n}", chart=chart) for n, chart in enumerate(charts)),
        memory=tuple(_memory_bars(one) for one in evidence if isinstance(one, MemoryMap)),
        segments=tuple(segment_picture(one, f"{anchor}-segments-{n}") for n, one in enumerate(maps)),
        alternatives=tuple(alternative_bars(one) for one in evidence if isinstance(one, Alternatives)),
        changes=tuple(_change_block(change) for change in changes_to_make(finding.fix.changes)),
        numbers=tuple(one for one in evidence if isinstance(one, Numbers)),
        tables=tuple(table_view(one) for one in evidence if isinstance(one, Table)),
        snippets=tuple((one, code_lines(one)) for one in snippets if one is not blamed),
        narratives=tuple(one for one in evidence if isinstance(one, Narrative)),
    )


def _chart_of(evidence: Series | Intervals) -> Chart | TrackChart:
    return series_chart(evidence) if isinstance(evidence, Series) else tracks_chart(evidence)


def _shows(snippet: Snippet, blame: SourceLine) -> bool:
    return snippet.file == blame.file and snippet.highlighted == blame.line


def _blame_line(blame: SourceLine) -> tuple[CodeLine, ...]:
    """Nothing where the line's text is not known."""
    return (CodeLine(number=blame.line, text=blame.text, is_blamed=True),) if blame.text else ()


def _gain_lines(finding: Finding, report: Report) -> tuple[GainLine, ...]:
    gain, lines = finding.gain, []
    if gain.step_ms is not None:
        share = share_of(gain.step_ms, median_step_ms(report))
        details = _joined(show_interval(gain.step_ms_interval, "ms"), share, "of the median step")
        lines.append(GainLine(amount=f"{gain_verb(gain)} {show(gain.step_ms, 'ms')} per step", details=details))
    if gain.peak_bytes is not None:
        share, last = share_of(gain.peak_bytes, peak_bytes(report)), last_read_step(report)
        whole = "of the peak" if last is None else f"of the peak up to step {last:,}"
        details = _joined(_peak_interval(gain), share, whole)
        amount = f"{gain_verb(gain)} {peak_saved(gain)} of peak memory"
        lines.append(GainLine(amount=amount, details=details))
    return tuple(lines)


def _peak_interval(gain: Gain) -> str:
    """Of a lower limit the estimate behind it as well, and the steps that both hold for."""
    ends = show_interval(gain.peak_bytes_interval, "bytes")
    estimate = f"{show(gain.peak_bytes, 'bytes')}{in_brackets(ends)}" if is_lower_bound(gain) else ends
    return f"{estimate}{until_phrase(gain)}" if estimate else ""


def _joined(interval: str, share: float | None, whole: str) -> str:
    return ", ".join(
        part
        for part in (interval, f"{format_share(share)} {whole}" if share and share >= SMALLEST_SHARE else "")
        if part
    )


def _memory_bars(memory: MemoryMap) -> MemoryBars:
    shown, rest = memory.bars[:MAX_MEMORY_BARS], memory.bars[MAX_MEMORY_BARS:]
    largest = max((bar.num_bytes for bar in memory.bars), default=0) or 1
    rest_bytes = show(sum(bar.num_bytes for bar in rest), "bytes")
    return MemoryBars(
        title=memory.title,
        bars=tuple(
            (bar.label, bar.num_bytes, round(100 * bar.num_bytes / largest, 1), bar.is_highlighted) for bar in shown
        ),
        rest=f"and {count_of(len(rest), 'smaller owner')} with {rest_bytes}" if rest else "",
    )


def _change_block(change: Change) -> ChangeBlock:
    old, new = (side.splitlines() for side in change_sides(change))
    shown = textwrap.dedent("\n".join([*old, *new])).split("\n")
    return ChangeBlock(
        name=change_name(change),
        removed=tuple(shown[: len(old)]),
        added=tuple(shown[len(old) :]) if new else (),
        copied="\n".join(new),
    )
