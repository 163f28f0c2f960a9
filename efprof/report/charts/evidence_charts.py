"""The pictures that a finding brings as evidence."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle

from efprof.model import STAGES, Series, SeriesLine
from efprof.report.charts.chart import (
    SERIES,
    AxisScale,
    Band,
    Chart,
    Layer,
    axis_label,
    scale_for,
    scaled,
    thin,
    thinned_caption,
)
from efprof.report.wording import shorten_path

NO_STAGE = "other"
"""What is of none of the others: its grey alone does not make the other colours those of stages."""

MIN_BAND = 1 / 1000
"""Of the picture's width: a narrower band is thinner than a pixel."""

BAND_ROOM = 1.2
"""How much higher than its curves a picture with stages is: for their strip, and their names below it."""

MAX_NOTE = 44
"""Letters of a note that fit on a phone: a longer one begins with a path, whose end says which file it is."""

MAX_FLATNESS = 0.8
"""Curves whose lowest point is higher than this share of the highest look flat above a zero."""


def series_chart(series: Series) -> Chart:
    """Curves over one axis; the highlighted ones strong and in the colour of alarm."""
    every_x = [x for line in series.lines for x in line.x]
    every_y = [y for line in series.lines for y in line.y]
    finite = [y for y in every_y if math.isfinite(y)]
    # They may change so little above zero that their change would not be seen from there.
    is_flat = bool(finite) and min(finite) > MAX_FLATNESS * max(finite) > 0
    x_scale = scale_for(every_x, series.x_unit)
    y_scale = scale_for(every_y, series.y_unit)
    layers = tuple(
        _series_layer(series, line, colour, x_scale, y_scale)
        for line, colour in zip(series.lines, _colours(series.lines), strict=True)
    )
    return Chart(
        title=series.title,
        caption=thinned_caption(sum(len(layer.x) for layer in layers), len(every_x)).strip(),
        x_label=axis_label(series.x_label, x_scale.unit),
        y_label=axis_label(series.y_label, y_scale.unit),
        y_unit=y_scale.unit,
        layers=layers,
        bands=tuple(_bands(series, every_x, x_scale)),
        marks=tuple((at / x_scale.factor, label) for at, label in series.marks),
        y_range=(0.0, BAND_ROOM * _top(series) / y_scale.factor) if series.bands else None,
        has_zero=series.is_stacked or not is_flat,
    )


def _colours(lines: Sequence[SeriesLine]) -> Iterator[str]:
    """That of its stage, or the next of those that are no stage's."""
    taken = {line.stage for line in lines if line.stage}
    kept = STAGES if taken - {NO_STAGE} else taken
    free = cycle(colour for colour in SERIES if colour not in kept)
    for line in lines:
        if line.is_highlighted:
            yield "alert"
        elif line.is_over_stack:
            yield "text"
        else:
            yield line.stage or next(free)


def _series_layer(series: Series, line: SeriesLine, colour: str, x_scale: AxisScale, y_scale: AxisScale) -> Layer:
    """Stacked curves are not thinned: their points must stay at the same x."""
    kept = range(len(line.y)) if series.is_stacked else thin(line.y)
    return Layer(
        kind="points" if line.are_apart else "stack" if series.is_stacked and not line.is_over_stack else "line",
        label=line.label,
        colour=colour,
        x=tuple(line.x[index] / x_scale.factor for index in kept),
        y=scaled([line.y[index] for index in kept], y_scale),
        notes=tuple(shorten_path(line.notes[index], MAX_NOTE) for index in kept) if line.notes else (),
        is_strong=line.is_highlighted,
        is_stepped=series.is_stepped,
    )


def _bands(series: Series, every_x: Sequence[float], x_scale: AxisScale) -> Iterator[Band]:
    """All that are wide enough to be seen."""
    width = max(every_x, default=0.0) - min(every_x, default=0.0)
    for band in series.bands:
        if band.end - band.start >= MIN_BAND * width:
            start, end = band.start / x_scale.factor, band.end / x_scale.factor
            yield Band(start=start, end=end, label=band.stage, stage=band.stage)


def _top(series: Series) -> float:
    """The highest that its curves, or all of a stack together, reach."""
    curves = [line.y for line in series.lines if line.is_over_stack or not series.is_stacked]
    stack = [line.y for line in series.lines if series.is_stacked and not line.is_over_stack]
    heights = [*(y for curve in curves for y in curve), *map(sum, zip(*stack, strict=True))]
    return max((height for height in heights if math.isfinite(height)), default=0.0) or 1.0
