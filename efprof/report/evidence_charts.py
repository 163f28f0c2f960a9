"""The pictures that a finding brings as evidence, and those of two runs side by side."""

import math
from collections.abc import Sequence
from typing import Final

from efprof.model import Intervals, Metric, Series, SeriesLine
from efprof.report.chart import (
    AxisScale,
    Block,
    Chart,
    Layer,
    LayerKind,
    TrackChart,
    axis_label,
    scale_for,
    scaled,
    thin,
    thinned_caption,
)
from efprof.report.palette import SERIES

MAX_BLOCKS: Final = 600
"""Blocks of a track picture: the longest ones; the others would be thinner than a pixel."""

MAX_FLATNESS: Final = 0.8
"""Curves whose lowest point is higher than this share of the highest look flat above a zero."""


def series_chart(series: Series) -> Chart:
    """Curves over one axis; the highlighted ones strong and in the colour of alarm."""
    x_scale = scale_for([x for line in series.lines for x in line.x], series.x_unit)
    y_scale = scale_for([y for line in series.lines for y in line.y], series.y_unit)
    kind: LayerKind = "stack" if series.is_stacked else "line"
    layers = tuple(_series_layer(line, place, kind, x_scale, y_scale) for place, line in enumerate(series.lines))
    num_drawn, num_all = sum(len(layer.x) for layer in layers), sum(len(line.x) for line in series.lines)
    return Chart(
        title=series.title,
        caption=thinned_caption(num_drawn, num_all).strip(),
        x_label=axis_label(series.x_label, x_scale.unit),
        y_label=axis_label(series.y_label, y_scale.unit),
        y_unit=y_scale.unit,
        layers=layers,
        marks=tuple((at / x_scale.factor, label) for at, label in series.marks),
        has_zero=series.is_stacked or not _is_flat([y for line in series.lines for y in line.y]),
    )


def tracks_chart(intervals: Intervals) -> TrackChart:
    """What ran when; the tracks in the order in which they first come."""
    longest = sorted(intervals.intervals, key=lambda one: (not one.is_highlighted, one.start_ms - one.end_ms))
    drawn = sorted(longest[:MAX_BLOCKS], key=lambda one: (one.start_ms, one.track))
    scale = scale_for([one.end_ms for one in drawn], "ms")
    left_out = len(intervals.intervals) - len(drawn)
    return TrackChart(
        title=intervals.title,
        caption=f"The {len(drawn):,} longest; {left_out:,} shorter ones are left out." if left_out else "",
        x_label=axis_label("time", scale.unit),
        tracks=tuple(dict.fromkeys(one.track for one in intervals.intervals)),
        blocks=tuple(
            Block(
                track=one.track,
                label=one.label,
                start=one.start_ms / scale.factor,
                end=one.end_ms / scale.factor,
                is_strong=one.is_highlighted,
            )
            for one in drawn
        ),
    )


def metric_chart(base: Metric, head: Metric) -> Chart:
    """The samples of one metric on both sides of a comparison, by their place in the run."""
    scale = scale_for([*base.samples, *head.samples], base.unit)
    sides = (("base", base, "other"), ("head", head, "forward"))
    layers = []
    for label, metric, colour in sides:
        kept = thin(metric.samples)
        layers.append(
            Layer(
                kind="line",
                label=label,
                colour=colour,
                x=tuple(float(index) for index in kept),
                y=scaled([metric.samples[index] for index in kept], scale),
                is_strong=label == "head",
            )
        )
    return Chart(
        title=base.label,
        caption="",
        x_label="sample",
        y_label=axis_label(base.label, scale.unit),
        y_unit=scale.unit,
        layers=tuple(layers),
        has_zero=not _is_flat([*base.samples, *head.samples]),
    )


def _is_flat(values: Sequence[float]) -> bool:
    """Whether the values change so little above zero that their change would not be seen."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > MAX_FLATNESS * max(finite) > 0


def _series_layer(line: SeriesLine, place: int, kind: LayerKind, x_scale: AxisScale, y_scale: AxisScale) -> Layer:
    """Stacked curves are not thinned: their points must stay at the same x."""
    kept = thin(line.y) if kind == "line" else range(len(line.y))
    return Layer(
        kind=kind,
        label=line.label,
        colour="alert" if line.is_highlighted else SERIES[place % len(SERIES)],
        x=tuple(line.x[index] / x_scale.factor for index in kept),
        y=scaled([line.y[index] for index in kept], y_scale),
        is_strong=line.is_highlighted,
    )
