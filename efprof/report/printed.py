"""A chart as an SVG drawn by matplotlib, for printing and for readers without JavaScript; the same bytes every time."""

import io
import itertools
import math
import re
import warnings
from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from efprof.report.chart import Band, Chart, Layer, TrackChart, bar_gap, is_right_half, label_rows, x_range
from efprof.report.palette import LIGHT
from efprof.report.wording import shorten

SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "efprof",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": LIGHT["grid"],
    "axes.labelcolor": LIGHT["muted"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify": True,
}
PATH: Final = re.compile(rb' d="[^"]*"')
LATER_DIGITS: Final = re.compile(rb"(?<=\.\d\d)\d+")
"""Of a path's numbers, which are points: a hundredth of one is not seen, and the page is smaller without the rest."""
NO_DATE: Final = {"Date": None, "Creator": None}
LETTERS_ACROSS: Final = 105
"""Letters of the size of a block's label that fit beside each other."""
MIN_LETTERS: Final = 8
LEGEND_LETTERS: Final = 95
"""Letters of a legend that fit beside each other: a wider one would shrink the picture under it."""
LEGEND: Final[dict[str, float]] = {"fontsize": 8, "columnspacing": 1.2, "handlelength": 1.2, "handletextpad": 0.5}
KEY_LETTERS: Final = 4
"""What the coloured key of a label and the space around it take."""
ROW_SHARE: Final = 0.09
"""The height of a row of labels as a share of the picture's."""
STRIP_SHARE: Final = 0.03
"""The height of the strip that tells which stage ran, as a share of the picture's."""
STACK_ZORDER: Final = 1.5
"""Between the grid and the curves."""
WIDTH_INCHES: Final = 7.2
"""The text width of an A4 page."""


def svg_of(chart: Chart | TrackChart) -> bytes:
    """The chart in the light colours, as an SVG file."""
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        height = 2.7 if isinstance(chart, Chart) else 0.9 + 0.32 * len(chart.tracks)
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        axes = figure.add_subplot()
        if isinstance(chart, Chart):
            _draw_chart(axes, chart)
        else:
            _draw_tracks(axes, chart)
        axes.set_xlabel(_label(chart.x_label))
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata=NO_DATE)
    return PATH.sub(lambda path: LATER_DIGITS.sub(b"", path[0]), file.getvalue())


def _draw_chart(axes: Axes, chart: Chart) -> None:
    floor: list[float] = []
    for layer in chart.layers:
        floor = _draw_layer(axes, layer, floor)
    axes.set_xlim(*x_range(chart))
    for band, row in zip(chart.bands, label_rows(chart), strict=True):
        _draw_band(axes, band)
        if row is not None:
            at = band.end if is_right_half(chart, band.start) else band.start
            colour, top = (LIGHT["text"], 1 - STRIP_SHARE) if band.stage else (LIGHT["window"], 1.0)
            _note(axes, at, band.label, colour, top - row * ROW_SHARE)
    for at, label in chart.marks:
        axes.axvline(at, color=LIGHT["alert"], linestyle=":", linewidth=1)
        _note(axes, at, label, LIGHT["alert"])
    if chart.level is not None:
        axes.axhline(chart.level[0], color=LIGHT["text"], linestyle="--", linewidth=0.8)
        _level_note(axes, *chart.level)
    if chart.y_top is not None:
        axes.set_ylim(chart.y_bottom or 0.0, chart.y_top)
    elif chart.has_zero and axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(_label(chart.y_label))
    axes.grid(axis="y", color=LIGHT["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    if len(chart.layers) > 1:
        _draw_legend(axes, chart.layers)


def _draw_band(axes: Axes, band: Band) -> None:
    """A tint behind the curves, and of a stage a strip at the top that none of them hides."""
    colour = LIGHT[band.stage or "window"]
    axes.axvspan(band.start, band.end, color=colour, alpha=0.14, linewidth=0, zorder=0)
    if band.stage:
        axes.axvspan(band.start, band.end, ymin=1 - STRIP_SHARE, color=colour, linewidth=0)


def _draw_layer(axes: Axes, layer: Layer, floor: list[float]) -> list[float]:
    """Draws one layer on top of `floor`, the heights stacked so far; returns the new heights."""
    colour = LIGHT[layer.colour]
    y = [math.nan if value is None else value for value in layer.y]
    match layer.kind:
        case "line":
            drawn = "steps-post" if layer.is_stepped else "default"
            axes.plot(layer.x, y, color=colour, linewidth=1.4 if layer.is_strong else 0.9, drawstyle=drawn)
        case "points":
            axes.plot(layer.x, y, color=colour, linestyle="none", marker="v", markersize=4)
        case "fill":
            axes.fill(*_outlines(layer), color=colour, alpha=0.5, linewidth=0)
        case "bar":
            bottom = floor or [0.0] * len(y)
            axes.bar(layer.x, y, bottom=bottom, width=_bar_width(layer.x), color=colour, linewidth=0)
            return _summed(bottom, y)
        case "stack":
            top = _summed(floor if len(floor) == len(y) else [0.0] * len(y), y)
            # Down to zero, and behind what stands below: half as many points as both edges of the layer.
            behind = STACK_ZORDER - len(axes.patches) / 1000
            axes.fill(*_skyline(layer.x, top, is_stepped=layer.is_stepped), color=colour, linewidth=0, zorder=behind)
            return top
    return floor


def _outlines(layer: Layer) -> list[Sequence[float]]:
    """The closed outlines of a fill as x, y, x, y, ...; a gap ends one."""
    outlines: list[Sequence[float]] = []
    start = 0
    for end, value in enumerate((*layer.y, None)):
        if value is None:
            if end > start:
                outlines += [layer.x[start:end], [y or 0.0 for y in layer.y[start:end]]]
            start = end + 1
    return outlines


def _skyline(x: Sequence[float], y: Sequence[float], *, is_stepped: bool) -> tuple[list[float], list[float]]:
    """The closed outline from zero; where a height stays the same, its ends alone."""
    points = [(x[0], 0.0)]
    for place, (before, here, after) in enumerate(zip([None, *y[:-1]], y, [*y[1:], None], strict=True)):
        if is_stepped and before is not None and before != here:
            points.append((x[place], before))
        if not before == here == after:
            points.append((x[place], here))
    points.append((x[-1], 0.0))
    return [at for at, _ in points], [height for _, height in points]


def _draw_tracks(axes: Axes, chart: TrackChart) -> None:
    row_of = {track: row for row, track in enumerate(chart.tracks)}
    axes.barh(
        [row_of[block.track] for block in chart.blocks],
        [block.end - block.start for block in chart.blocks],
        left=[block.start for block in chart.blocks],
        color=[LIGHT["alert" if block.is_strong else "forward"] for block in chart.blocks],
        height=0.7,
        linewidth=0,
    )
    start, end = axes.get_xlim()
    for block in chart.blocks:
        room = int(LETTERS_ACROSS * (block.end - block.start) / (end - start))
        if room >= MIN_LETTERS:
            text = shorten(block.label, room)
            axes.text(block.start, row_of[block.track], f" {text}", color=LIGHT["ground"], fontsize=7, va="center")
    axes.set_yticks(range(len(chart.tracks)), [shorten(track, 28) for track in chart.tracks])
    axes.invert_yaxis()


def _draw_legend(axes: Axes, layers: Sequence[Layer]) -> None:
    handles = [mpl.patches.Patch(color=LIGHT[layer.colour]) for layer in layers]
    labels = [_label(layer.label) for layer in layers]
    num_columns = max(1, min(8, LEGEND_LETTERS // (max(map(len, labels)) + KEY_LETTERS)))
    legend = axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=num_columns, **LEGEND)
    legend.set_frame_on(False)


def _note(axes: Axes, at: float, label: str, colour: str, top: float = 1.0) -> None:
    """A word at the top of the picture, on that side of its place on which there is more room."""
    side = "right" if at > sum(axes.get_xlim()) / 2 else "left"
    place = axes.get_xaxis_transform()
    axes.text(at, top - 0.01, shorten(label, 32), transform=place, color=colour, fontsize=7, va="top", ha=side)


def _level_note(axes: Axes, level: float, label: str) -> None:
    """A word above a horizontal line, on a ground of its own: bars may stand behind it."""
    ground = {"facecolor": LIGHT["ground"], "alpha": 0.8, "linewidth": 0, "pad": 1.0}
    place = axes.get_yaxis_transform()
    axes.text(1, level, _label(label), transform=place, ha="right", va="bottom", fontsize=7, bbox=ground)


def _label(text: str) -> str:
    """On one line and short; a leading underscore would make matplotlib drop it from the legend."""
    line = shorten(text, 60)
    return f" {line}" if line.startswith("_") else line


def _bar_width(x: Sequence[float]) -> float:
    return (1 - bar_gap(len(x))) * min((after - before for before, after in itertools.pairwise(x)), default=1.0)


def _summed(bottom: Sequence[float], y: Sequence[float]) -> list[float]:
    return [low + (0.0 if math.isnan(high) else high) for low, high in zip(bottom, y, strict=True)]
