"""A chart as a plotly figure or as a still SVG; colours are names that the page's theme resolves."""

import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from efprof.model import EfprofError
from efprof.report.charts.chart import LIGHT, MAX_BAND_LETTERS, Band, Chart, Layer, is_drawable, labelled_bands, x_range
from efprof.report.wording import shorten

Figure = dict[str, Any]
Numbers = NDArray[np.float64]
LAYOUT = Path(__file__).parent / "layout.json"
"""What all pictures have in common."""
MAX_LABEL = 60
STATIC_INCHES = (8.6, 3.0)
STRIP_SHARE = 0.03
"""The height of the strip that tells which stage ran, as a share of the picture's."""
ROW_SHARE = 0.08
"""The height of a row of labels as a share of the picture's."""
HALF_OPAQUE = "80"
"""The alpha channel that the page's script appends to a named colour."""


def figure_of(chart: Chart) -> Figure:
    """The figure; every string from outside is escaped for plotly's own markup."""
    layout: Figure = msgspec.json.decode(LAYOUT.read_bytes())
    layout["xaxis"]["title"]["text"] = label_text(chart.x_label)
    layout["yaxis"]["title"]["text"] = label_text(chart.y_label)
    start, end = layout["xaxis"]["range"] = x_range(chart)
    middle = (start + end) / 2
    layout["shapes"] = [shape for band in chart.bands for shape in _band_shapes(band)]
    line = {"color": "var(--alert)", "width": 1.3, "dash": "dot"}
    mark = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": line}
    layout["shapes"] += [mark | {"x0": _rounded(at), "x1": _rounded(at)} for at, _ in chart.marks]
    notes = layout["annotations"] = [
        _top_note(
            band.end if band.start > middle else band.start,
            band.label,
            "var(--text)" if band.stage else "var(--window)",  # the colours of some stages are too light for letters
            is_left=band.start > middle,
            y=(1 - STRIP_SHARE if band.stage else 1.0) - row * ROW_SHARE,
        )
        for row, band in enumerate(labelled_bands(chart))
    ]
    notes += [_top_note(at, label, "var(--alert)", is_left=at > middle) for at, label in chart.marks]
    if len(chart.layers) == 1:
        layout["showlegend"], layout["margin"]["t"] = False, 14
    layout["yaxis"]["rangemode"] = "tozero" if chart.has_zero else "normal"
    if chart.y_range is not None:
        layout["yaxis"]["range"] = [*map(_rounded, chart.y_range)]
    if any(layer.kind == "stack" for layer in chart.layers):
        layout["hovermode"] = "x unified"  # what lies on top of each other belongs together
        layout["xaxis"]["unifiedhovertitle"] = {"text": f"{label_text(chart.x_label)} %{{x:.6~g}}"}
    layout["barmode"], layout["bargap"] = "stack", 0.0
    return {"data": [_trace(layer, chart) for layer in chart.layers], "layout": layout}


def svg_of(chart: Chart, picture_id: str) -> str:
    """A picture that needs no JavaScript; raises EfprofError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Drawing
    except ModuleNotFoundError as error:
        raise EfprofError(
            "--static draws with matplotlib, which is not installed: python -m pip install matplotlib."
        ) from error
    stream = io.StringIO()
    with matplotlib.rc_context(style_of(LIGHT)):
        drawing = Drawing(figsize=STATIC_INCHES, layout="constrained")
        draw(drawing.add_subplot(), chart, LIGHT)
        drawing.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    for start in ('id="', "url(#", 'href="#'):  # several pictures share a page
        text = text.replace(start, f"{start}{picture_id}-")
    for name, colour in LIGHT.items():
        text = text.replace(colour, f"var(--{name})")
    return text[text.index("<svg") :]


def style_of(palette: Mapping[str, str]) -> Any:
    """Texts stay texts, and the same picture is the same file."""
    of_text = ("axes.labelcolor", "xtick.color", "ytick.color", "text.color")
    plain = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "efprof", "text.parse_math": False}
    edges = {"axes.edgecolor": palette["muted"], "axes.spines.top": False, "axes.spines.right": False}
    return {**dict.fromkeys(of_text, palette["text"]), **edges, **plain}


def draw(axes: Any, chart: Chart, palette: Mapping[str, str]) -> None:
    """Draw it on matplotlib's axes."""
    for band in chart.bands:
        axes.axvspan(band.start, band.end, color=palette[band.stage or "window"], alpha=0.16, linewidth=0)
    notes = [(band.start, band.label, row) for row, band in enumerate(labelled_bands(chart))]
    for at, label, row in [*notes, *((at, label, 0) for at, label in chart.marks)]:
        place = axes.get_xaxis_transform()
        axes.text(at, 0.98 - row * ROW_SHARE, shorten(label, MAX_BAND_LETTERS), transform=place, va="top", fontsize=8)
    for at, _ in chart.marks:
        axes.axvline(at, color=palette["alert"], linestyle=":")
    bottom = np.empty(0)
    for layer in chart.layers:
        bottom = _draw_layer(axes, layer, palette[layer.colour], bottom)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, xlim=x_range(chart))
    axes.set_ylim(*(chart.y_range or (0 if chart.has_zero else None, None)))
    if len(chart.layers) > 1:
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def _draw_layer(axes: Any, layer: Layer, colour: str, bottom: Numbers) -> Numbers:
    """`bottom` is what the layers below reach, where they stand on top of each other; and what this one reaches."""
    x, y = layer.x, np.array(layer.y, np.float64)  # a gap is no number
    style = {"color": colour, "label": shorten(layer.label, MAX_LABEL)}
    low, height = bottom if len(bottom) == len(y) else np.zeros(len(y)), np.nan_to_num(y)
    match layer.kind:
        case "bar":
            axes.bar(x, height, bottom=low, **style)
            return low + height
        case "stack":
            axes.fill_between(x, low, low + height, step="post" if layer.is_stepped else None, **style)
            return low + height
        case "fill":
            axes.fill(x, y, alpha=0.5, linewidth=0, **style)
        case "points":
            marker, size = ("v", 5) if layer.notes else ("o", 6 if layer.is_strong else 3)
            axes.plot(x, y, linestyle="", marker=marker, markersize=size, **style)
        case _:
            form = "steps-post" if layer.is_stepped else "default"
            axes.plot(x, y, drawstyle=form, linewidth=1.6 if layer.is_strong else 1, **style)
    return bottom


def label_text(text: str, limit: int = MAX_LABEL) -> str:
    """A string from outside, for places where plotly reads markup."""
    return html.escape(shorten(text, limit), quote=False)


def _trace(layer: Layer, chart: Chart) -> Figure:
    colour, shape = f"var(--{layer.colour})", "hv" if layer.is_stepped else "linear"
    trace: Figure = {
        "type": "bar" if layer.kind == "bar" else "scatter",
        "name": label_text(layer.label),
        "x": [_rounded(x) for x in layer.x],
        "y": [_rounded(y) for y in layer.y],
    }
    if layer.notes:
        trace["text"] = [label_text(note) for note in layer.notes]
    match layer.kind:
        case "bar":
            trace |= {"marker": {"color": colour, "line": {"width": 0}}, "hoverinfo": "text", "textposition": "none"}
        case "points":
            symbol, size = ("triangle-down", 9) if layer.notes else ("circle", 10 if layer.is_strong else 5)
            trace |= {"mode": "markers", "marker": {"color": colour, "symbol": symbol, "size": size}}
            trace |= {"hoverinfo": "text"} if layer.notes else _hover(layer, chart)
        case "fill":
            trace |= {"mode": "lines", "fill": "toself", "fillcolor": f"{colour}{HALF_OPAQUE}", "hoverinfo": "skip"}
            trace |= {"line": {"color": colour, "width": 0}}
        case "stack":
            line = {"color": colour, "width": 0.5, "shape": shape}
            trace |= {"mode": "lines", "stackgroup": "all", "fillcolor": colour, "line": line}
            trace |= _hover(layer, chart)
        case "line":
            line = {"color": colour, "width": 2.2 if layer.is_strong else 1.3, "shape": shape}
            trace |= {"mode": "lines", "line": line} | _hover(layer, chart)
    return trace


def _hover(layer: Layer, chart: Chart) -> Figure:
    """What is told of a point; of a stack in one box with all layers, which says where it is."""
    amount, name = f"%{{y:,.4~r}} {label_text(chart.y_unit)}", "<extra>%{fullData.name}</extra>"
    if not any(other.kind == "stack" for other in chart.layers):
        where = "%{text}" if layer.notes else f"{label_text(chart.x_label)} %{{x:.6~g}}"
        return {"hovertemplate": f"{where}<br>{amount}{name}"}
    if not layer.notes:
        return {"hovertemplate": amount + name}
    notes = [f"<br>  {label_text(note)}" if note else "" for note in layer.notes]
    return {"hovertemplate": f"{amount}%{{text}}{name}", "text": notes}


def _band_shapes(band: Band) -> list[Figure]:
    """A tint behind the curves, and of a stage the strip."""
    shape: Figure = {"type": "rect", "x0": _rounded(band.start), "x1": _rounded(band.end), "yref": "paper", "y1": 1}
    shape |= {"fillcolor": f"var(--{band.stage or 'window'})", "line": {"width": 0}}
    tint = shape | {"y0": 0, "layer": "below", "opacity": 0.16}
    return [tint] if band.stage is None else [tint, shape | {"y0": 1 - STRIP_SHARE}]


def _top_note(at: float, label: str, colour: str, *, is_left: bool, y: float = 1.0) -> Figure:
    """A word at the top of the picture, on that side of its place on which there is more room."""
    place = {"x": _rounded(at), "yref": "paper", "y": round(y - 0.005, 3), "font": {"size": 11, "color": colour}}
    place |= {"xanchor": "right" if is_left else "left", "yanchor": "top"}
    return place | {"text": label_text(label, MAX_BAND_LETTERS), "showarrow": False, "bgcolor": "var(--ground-veil)"}


def _rounded(value: float | None) -> float | None:
    """Six digits are more than a picture shows; what is not finite is a gap."""
    return float(f"{value:.6g}") if is_drawable(value) else None
