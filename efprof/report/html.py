"""One self-contained HTML file: no network, every outside string escaped, the same bytes for the same report."""

import base64
import functools
import gzip
import math
import shlex
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup

from efprof.model import Comparison, Metric, Report
from efprof.report import (
    comparison_words,
    evaluation_table,
    memory_table,
    palette,
    segment_picture,
    stall_table,
    step_table,
    verdict,
    wording,
)
from efprof.report.chart import Chart, TrackChart
from efprof.report.ending import FOREIGN
from efprof.report.evidence_charts import metric_chart
from efprof.report.interactive import figure_of, height_of
from efprof.report.page import Card, Picture, card_maker, make_cards, make_device_section, table_view
from efprof.report.ranking import rank_findings
from efprof.report.run_pictures import make_run_pictures
from efprof.units import format_share

TEMPLATES: Final = Path(__file__).parent / "templates"


def render_html(report: Report) -> str:
    """The page of one run."""
    cards, pictures = make_cards(report), make_run_pictures(report)
    timeline = report.measurements.timeline
    memory_rows = memory_table.step_memory_rows(timeline.memory)
    device = make_device_section(report)
    shown = [
        *(device.pictures if device else ()),
        pictures.memory,
        pictures.window,
        pictures.time,
        pictures.evaluation,
        *pictures.numbers,
        *(p for card in cards for p in card.pictures),
    ]
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=f"efprof {report.run.name} {report.run.run_id}",
            header=verdict.header_items(report.run),
            report=report,
            is_foreign=report.run.ended == FOREIGN,
            lines=verdict.describe_verdict(report),
            counts=verdict.count_audits(report),
            looked_for=[audit.audit_id for audit in report.audits if audit.status == "passed"],
            overhead=verdict.overhead_phrase(report),
            cards=cards,
            pictures=pictures,
            device=device,
            totals=step_table.totals(report.measurements),
            stall_columns=stall_table.COLUMNS,
            stall_rows=stall_table.stall_rows(report.measurements.stalls),
            step_columns=step_table.COLUMNS,
            step_rows=step_table.step_rows(timeline.steps),
            step_title=step_table.step_title(timeline.steps),
            stage_columns=memory_table.STAGE_COLUMNS,
            stage_rows=memory_table.stage_rows(report.measurements.stage_deltas),
            largest_jump=memory_table.largest_jump_sentence(report.measurements.stage_deltas),
            memory_columns=memory_table.STEP_COLUMNS,
            memory_rows=memory_rows,
            memory_title=memory_table.step_memory_title(len(memory_rows), len(timeline.memory)),
            processes=table_view(report.measurements.processes) if report.measurements.processes else None,
            evaluation_columns=evaluation_table.COLUMNS,
            evaluation_rows=evaluation_table.evaluation_rows(report.measurements.evaluations),
            max_evaluation_rows=evaluation_table.MAX_ROWS,
            steps_left_out=step_table.left_out_sentence(timeline.steps),
            plotly=_plotly_if(any(shown)),
        )
    )


def render_comparison_html(
    comparison: Comparison, base_report: Report | None = None, head_report: Report | None = None
) -> str:
    """The page of a comparison; with the reports of both sides also pictures and the added findings in full."""
    pictures = _metric_pictures(base_report, head_report)
    cards = _added_cards(comparison, head_report) if head_report else ()
    return (
        _environment()
        .get_template("comparison.html")
        .render(
            title=f"efprof {comparison.base.name} compared with {comparison.head.name}",
            header=("comparison", f"base {comparison.base.run_id}", f"head {comparison.head.run_id}"),
            comparison=comparison,
            verdict=comparison_words.comparison_verdict(comparison),
            columns=comparison_words.COLUMNS,
            caption=comparison_words.TABLE_CAPTION,
            metrics=[(metric, comparison_words.metric_cells(metric)) for metric in comparison.metrics],
            sides=(("base", comparison.base), ("head", comparison.head)),
            findings=comparison_words.findings_by_change(comparison),
            cards=cards,
            anchors={card.ranked.key: card.anchor for card in cards},
            pictures=pictures,
            plotly=_plotly_if(bool(pictures) or any(card.pictures for card in cards)),
        )
    )


def _metric_pictures(base: Report | None, head: Report | None) -> tuple[Picture, ...]:
    """One picture for every metric that both sides sampled more than once."""
    if base is None or head is None:
        return ()
    heads = {metric.name: metric for metric in head.measurements.metrics}
    pairs = [(metric, heads[metric.name]) for metric in base.measurements.metrics if metric.name in heads]
    drawn = [pair for pair in pairs if min(map(_num_finite, pair)) > 1]
    return tuple(Picture(id=f"picture-metric-{place}", chart=metric_chart(*pair)) for place, pair in enumerate(drawn))


def _num_finite(metric: Metric) -> int:
    return sum(map(math.isfinite, metric.samples))


def _added_cards(comparison: Comparison, head: Report) -> tuple[Card, ...]:
    added = {finding.key for finding in comparison.findings if finding.change == "added"}
    make = card_maker(head)
    return tuple(make(item) for item in rank_findings(head) if item.key in added)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    environment.filters |= {
        "show": wording.show,
        "show_interval": wording.show_interval,
        "share": format_share,
        "count_of": wording.count_of,
        "one_line": wording.one_line,
        "shell": shlex.join,
        "prose": _prose,
        "sentence": wording.sentence,
        "side": comparison_words.side_phrase,
        "figure": _figure_json,
        "notes": _notes_json,
        "map_fill": _map_fill,
        "height": height_of,
    }
    environment.globals |= {
        "palettes": (palette.LIGHT, palette.DARK),
        "style": Markup(_template_text("style.css") + _template_text("device.css")),
        "script": Markup(_template_text("page.js") + _template_text("device.js")),
        "theme_script": Markup(_template_text("theme.js")),
        "line_pixels": segment_picture.LINE_PIXELS,
        "applicability": wording.APPLICABILITY_PHRASES,
        "revision": verdict.revision,
    }
    return environment


def _printable(value: object) -> object:
    """Strings from outside with their control characters made visible; our own markup as it is."""
    return wording.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _prose(text: str) -> Markup:
    """Escaped text in which what stands between backticks is code."""
    pieces = wording.code_spans(wording.printable(text))
    return Markup("").join(Markup("<code>{}</code>").format(piece) if is_code else piece for piece, is_code in pieces)


def _template_text(name: str) -> str:
    """Our own style and scripts go in as they are: they hold nothing from outside."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _figure_json(chart: Chart | TrackChart) -> Markup:
    return _script_json(figure_of(chart))


def _notes_json(notes: tuple[str, ...]) -> Markup:
    return _script_json(notes)


def _script_json(content: Any) -> Markup:
    """JSON that may stand inside a script element: nothing in it can end the element or start a comment."""
    text = msgspec.json.encode(content).decode()
    return Markup(_escaped(text, "<>&\u2028\u2029"))


def _map_fill(fill: str, picture_id: str) -> str:
    """A colour of the palette, the hatching of a state, or nothing to see, but something to point at."""
    if fill in palette.LIGHT:
        return f"fill: var(--{fill})"
    return "fill: transparent" if fill == "releasable" else f"fill: url(#{picture_id}-{fill})"


def _escaped(text: str, characters: Iterable[str]) -> str:
    for character in characters:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plotly_if(is_needed: bool) -> str:
    return _compressed_plotly() if is_needed else ""


@functools.cache
def _compressed_plotly() -> str:
    """plotly.js from the Python package; compressed, it makes the page 3 MB smaller and opens no slower."""
    source = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, 9, mtime=0)).decode()
