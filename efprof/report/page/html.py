"""One self-contained HTML file: no network, every outside string escaped, the same bytes for the same report."""

import base64
import functools
import math
import shlex
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup

from efprof.model import Comparison, Report
from efprof.report.charts import segment_picture, timeline_charts
from efprof.report.charts.chart import DARK, LIGHT, Chart
from efprof.report.charts.evidence_charts import metric_chart
from efprof.report.charts.interactive import figure_of
from efprof.report.page import page
from efprof.report.words import comparison_form, tables, verdict, wording
from efprof.report.words.ranking import median_step_ms, rank_findings

TEMPLATES: Final = Path(__file__).parent / "templates"
PLOTLY: Final = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js.gz"
"""plotly.js with the traces that have an x and a y axis, as npm has it, compressed: `make plotly` renews it."""


def render_html(report: Report) -> str:
    """The page of one run."""
    measurements = report.measurements
    timeline = measurements.timeline
    return _rendered(
        "report.html",
        title=f"efprof {report.run.name} {report.run.run_id}",
        header=verdict.header_items(report.run),
        report=report,
        is_foreign=report.run.ended == verdict.FOREIGN,
        lines=verdict.describe_verdict(report),
        counts=verdict.count_audits(report),
        looked_for=[audit.audit_id for audit in report.audits if audit.status == "passed"],
        overhead=verdict.overhead_phrase(report),
        cards=rank_findings(report),
        device=page.device_evidence(report),
        memory_chart=timeline_charts.memory_chart(measurements),
        window_chart=page.window_chart(report),
        time_chart=timeline_charts.time_chart(timeline, median_step_ms(report)),
        evaluation_chart=page.evaluation_chart(measurements.evaluations),
        number_charts=timeline_charts.number_charts(timeline.steps),
        totals=tables.totals(measurements),
        device_times=tables.device_table(measurements.metrics),
        stalls=tables.stall_table(measurements.stalls),
        stages=tables.stage_table(measurements.stage_deltas),
        largest_jump=tables.largest_jump_sentence(measurements.stage_deltas),
        memory=tables.memory_table(timeline.memory),
        evaluations=tables.evaluation_table(measurements.evaluations),
        steps=tables.step_table(timeline.steps),
        steps_left_out=tables.left_out_sentence(len(timeline.steps)),
    )


def render_comparison_html(
    comparison: Comparison, base_report: Report | None = None, head_report: Report | None = None
) -> str:
    """The page of a comparison; with the reports of both sides also pictures and the added findings in full."""
    added = {finding.key for finding in comparison.findings if finding.change == "added"}
    cards = [item for item in rank_findings(head_report) if item.key in added] if head_report else []
    return _rendered(
        "comparison.html",
        title=f"efprof {comparison.base.name} compared with {comparison.head.name}",
        header=("comparison", f"base {comparison.base.run_id}", f"head {comparison.head.run_id}"),
        comparison=comparison,
        head_report=head_report,
        verdict=comparison_form.comparison_verdict(comparison),
        columns=comparison_form.COLUMNS,
        caption=comparison_form.TABLE_CAPTION,
        metrics=[(metric, comparison_form.metric_cells(metric)) for metric in comparison.metrics],
        sides=(("base", comparison.base), ("head", comparison.head)),
        findings=comparison_form.findings_by_change(comparison),
        cards=cards,
        anchors={card.key: card.anchor for card in cards},
        pictures=_metric_pictures(base_report, head_report) if base_report and head_report else [],
    )


def _metric_pictures(base: Report, head: Report) -> list[Chart]:
    """One picture for every metric that both sides sampled more than once."""
    heads = {metric.name: metric for metric in head.measurements.metrics}
    pairs = [(metric, heads[metric.name]) for metric in base.measurements.metrics if metric.name in heads]
    return [metric_chart(*pair) for pair in pairs if all(sum(map(math.isfinite, side.samples)) > 1 for side in pair)]


def _rendered(template: str, **content: Any) -> str:
    return _environment().get_template(template).render(**content)


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
    wordings = (
        wording.show,
        wording.show_interval,
        wording.count_of,
        wording.one_line,
        wording.sentence,
        wording.change_name,
        wording.change_sides,
    )
    parts = (
        page.charts_of,
        page.of_kind,
        page.code_lines,
        page.blamed_code,
        page.other_snippets,
        page.gain_lines,
        page.in_order,
        segment_picture.segment_picture,
    )
    environment.filters |= {each.__name__: each for each in (*wordings, *parts)}
    environment.filters |= {
        "shell": shlex.join,
        "prose": _prose,
        "side": comparison_form.side_phrase,
        "diff": page.diff_of,
        "figure": lambda chart: _script_json(figure_of(chart)),
        "script_json": _script_json,
        "map_fill": _map_fill,
    }
    environment.globals |= {
        "palettes": (LIGHT, DARK),
        "style": Markup(_template_text("style.css") + _template_text("device.css")),
        "script": Markup(_template_text("page.js") + _template_text("device.js")),
        "theme_script": Markup(_template_text("theme.js")),
        "line_pixels": segment_picture.LINE_PIXELS,
        "applicability": wording.APPLICABILITY_PHRASES,
        "plotly": _compressed_plotly,
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


def _script_json(content: Any) -> Markup:
    """JSON that may stand inside a script element: nothing in it can end the element or start a comment."""
    text = msgspec.json.encode(content).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _map_fill(fill: str, picture_id: str) -> str:
    """A colour of the palette, the hatching of a state, or nothing to see, but something to point at."""
    if fill in LIGHT:
        return f"fill: var(--{fill})"
    return "fill: transparent" if fill == "releasable" else f"fill: url(#{picture_id}-{fill})"


@functools.cache
def _compressed_plotly() -> str:
    """Compressed, it makes the page 0.8 MB smaller and opens no slower."""
    return base64.b64encode(PLOTLY.read_bytes()).decode()
