"""One self-contained HTML file: no network, every outside string escaped, the same bytes for the same report."""

import base64
import functools
import inspect
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from efprof import units
from efprof.model import Change, Comparison, Evidence, Interval, Report, SegmentMap, Series, Snippet
from efprof.report import comparison_form, tables, verdict, wording
from efprof.report.charts import pictures, segment_picture, timeline_charts
from efprof.report.charts.chart import DARK, LIGHT, Chart, has_curve
from efprof.report.charts.evidence_charts import series_chart

TEMPLATES = Path(__file__).parent / "templates"
PLOTLY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js.gz"
"""plotly.js with the traces that have an x and a y axis, as npm has it, compressed: `make plotly` renews it."""


def render_html(report: Report, *, is_static: bool = False) -> str:
    """The page of a run; one that is static has still pictures, which need no JavaScript."""
    return (
        _environment(is_static)
        .get_template("report.html")
        .render(
            title=f"efprof {report.run.name} {report.run.run_id}",
            header=verdict.header_items(report.run),
            report=report,
            is_foreign=report.run.ended == verdict.FOREIGN,
        )
    )


def render_comparison_html(comparison: Comparison, head_report: Report, *, is_static: bool = False) -> str:
    """The page of a comparison, with the added findings in full."""
    return (
        _environment(is_static)
        .get_template("comparison.html")
        .render(
            title=f"efprof {comparison.base.name} compared with {comparison.head.name}",
            header=("comparison", f"base {comparison.base.run_id}", f"head {comparison.head.run_id}"),
            comparison=comparison,
            columns=comparison_form.COLUMNS,
            caption=comparison_form.TABLE_CAPTION,
            head_report=head_report,
        )
    )


def charts_of(evidence: Sequence[Evidence]) -> list[Chart]:
    """The curves among the evidence, as far as there is anything to see."""
    return [*filter(has_curve, (series_chart(one) for one in evidence if isinstance(one, Series)))]


def of_kind(evidence: Sequence[Evidence], kind: str) -> list[Evidence]:
    """The evidence whose class has that name."""
    return [one for one in evidence if type(one).__name__ == kind]


def device_evidence(report: Report) -> tuple[Evidence, ...]:
    """What a CUDA snapshot shows, unless a card has its map, and an estimate."""
    is_shown = any(isinstance(one, SegmentMap) for one in _evidence_of_findings(report))
    return (*(() if is_shown else report.measurements.device), *report.measurements.gpu_estimate)


def window_chart(report: Report) -> Chart | None:
    """Memory by what it is for through an allocation window, where no card has this picture."""
    series = report.measurements.window_memory
    if series is None or series in _evidence_of_findings(report):
        return None
    return next(iter(charts_of([series])), None)


def code_lines(snippet: Snippet) -> list[tuple[int, str, bool]]:
    """Number, text and whether it is the highlighted one of each line, without the indentation that they share."""
    lines = textwrap.dedent("\n".join(line.rstrip() for line in snippet.lines)).split("\n")
    return [(number, text, number == snippet.highlighted) for number, text in enumerate(lines, snippet.first_line)]


def bar_style(bar: Interval, span_ms: float) -> str:
    """Where a bar lies and how wide it is, in percent, and the colour of its stage or cause."""
    start, length = (round(100 * part / span_ms, 3) if span_ms else 0.0 for part in (bar.start_ms, bar.length_ms))
    colour = bar.colour if bar.colour in LIGHT else "other"
    return f"left:{start:g}%;width:{length:g}%;--c:var(--{colour})"


def diff_of(change: Change) -> tuple[list[str], list[str]]:
    """The lines that go and those that come, without the indentation that they share."""
    old, new = wording.change_sides(change)
    shown = textwrap.dedent("\n".join([*old, *new])).split("\n")
    return shown[: len(old)], shown[len(old) :] if new else []


@functools.cache
def _environment(is_static: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    words = units, wording, verdict, tables, comparison_form
    for module in (*words, segment_picture, timeline_charts, pictures, sys.modules[__name__]):
        functions = inspect.getmembers_static(module, inspect.isfunction)
        environment.filters |= {name: each for name, each in functions if each.__module__ == module.__name__}
    environment.filters["shell"] = shlex.join
    environment.globals |= {
        "is_static": is_static,
        "palettes": (LIGHT, DARK),
        "line_pixels": segment_picture.LINE_PIXELS,
        "plotly": _compressed_plotly,
    }
    return environment


def _printable(value: object) -> object:
    """Strings from outside with their control characters made visible; our own markup as it is."""
    return wording.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def prose(text: str) -> Markup:
    """Escaped text in which what stands between backticks is code."""
    pieces = wording.code_spans(wording.printable(text))
    return Markup("").join(Markup("<code>{}</code>").format(piece) if is_code else piece for piece, is_code in pieces)


def script_json(content: Any) -> Markup:
    """JSON that may stand inside a script element: nothing in it can end the element or start a comment."""
    text = msgspec.json.encode(content).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def map_fill(fill: str, picture_id: str) -> str:
    """A colour of the palette, the hatching of a state, or nothing to see, but something to point at."""
    if fill in LIGHT:
        return f"fill: var(--{fill})"
    return "fill: transparent" if fill == "releasable" else f"fill: url(#{picture_id}-{fill})"


@functools.cache
def _compressed_plotly() -> str:
    """Compressed, it makes the page 0.8 MB smaller and opens no slower."""
    return base64.b64encode(PLOTLY.read_bytes()).decode()


def _evidence_of_findings(report: Report) -> list[Evidence]:
    return [one for audit in report.audits for finding in audit.findings for one in finding.evidence]
