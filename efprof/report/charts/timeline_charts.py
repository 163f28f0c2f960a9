"""The pictures every run has: memory over time, time per step, loss and gradient norm."""

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from efprof.model import BOUNDARIES, STAGES, Measurements, MemorySample, Series, SeriesLine, StepSample, Timeline
from efprof.report.charts.chart import (
    AxisScale,
    Band,
    Chart,
    Layer,
    axis_label,
    has_curve,
    scale_for,
    scaled,
    thin,
    thinned_caption,
)
from efprof.report.charts.evidence_charts import series_chart
from efprof.report.wording import source_phrase
from efprof.units import format_count, format_ms

STAGE_AFTER = dict(zip(BOUNDARIES, ("forward", "other", "backward", "optimizer"), strict=False))
"""The stage that runs from one boundary of a step to the next."""
RECORDER = "recorder"
"""The part of a step that no stage has: what recording it took."""
MAX_BANDED_SAMPLES = 2000
"""400 steps of five boundaries: past that a stage is thinner than a pixel until one zooms far in."""
MAX_BARS = 400
"""Steps drawn one by one: past that bars are thinner than two pixels and each shows the mean of several steps."""
CLIP_FACTOR = 3.0
"""A step this many times above the 95th percentile would flatten all the others: the picture starts below it."""
MAX_SLOW_MARKS = 200


def memory_chart(measurements: Measurements) -> Chart | None:
    """Allocated and reserved at every boundary, the stage that followed each one as a band; None without samples."""
    timeline = measurements.timeline
    samples = timeline.memory
    if not samples:
        return None
    are_banded = len(samples) <= MAX_BANDED_SAMPLES
    kept = list(samples) if are_banded else [samples[index] for index in thin([s.allocated_bytes for s in samples])]
    clock = scale_for([sample.at_s * 1000 for sample in samples], "ms")
    x, notes = tuple(s.at_s * 1000 / clock.factor for s in kept), tuple(f"step {s.step}, {s.boundary}" for s in kept)
    scale = scale_for([max(s.reserved_bytes, s.allocated_bytes) for s in kept], "bytes")
    allocated = scaled([s.allocated_bytes for s in kept], scale)
    reserved = scaled([s.reserved_bytes for s in kept], scale)
    layers = _stage_bands(kept, x, allocated) if are_banded else []
    if any(reserved):
        layers.append(Layer(kind="line", label="reserved", colour="muted", x=x, y=reserved, notes=notes))
    layers.append(Layer(kind="line", label="allocated", colour="text", x=x, y=allocated, notes=notes))
    source = source_phrase(measurements.memory_source)
    caption = f"Read from {source} at stage boundaries; what lies between steps has no colour."
    return Chart(
        title="Memory over time",
        caption=caption + thinned_caption(len(kept), len(samples)),
        x_label=axis_label("time since the first step", clock.unit),
        y_label=axis_label("memory", scale.unit),
        y_unit=scale.unit,
        layers=tuple(layers),
        bands=_window_bands(timeline, clock),
    )


def time_chart(timeline: Timeline, median_ms: float | None) -> Chart | None:
    """The stages of every step on top of each other, slow steps marked, the median as a line; None without steps."""
    steps = timeline.steps
    if not steps:
        return None
    size = math.ceil(len(steps) / MAX_BARS)
    groups = [steps[start : start + size] for start in range(0, len(steps), size)]
    tops = [statistics.fmean(step.total_ms for step in group) for group in groups]
    lengths = sorted(step.total_ms for step in steps)
    usual = lengths[math.ceil(len(steps) * 0.95) - 1]
    y_top = usual * 1.5 if lengths[-1] > usual * CLIP_FACTOR else None
    scale = scale_for([y_top or max(tops)], "ms")
    layers = [_stage_layer(stage, place, groups, scale.factor) for place, stage in enumerate((*STAGES, RECORDER))]
    layers = [layer for layer in layers if any(layer.y)]
    if not all(step.stage_ms for step in steps):
        x = tuple((group[0].step + group[-1].step) / 2 for group in groups)
        y = tuple(top / scale.factor for top in tops)
        notes = (f"step {group[0].step:,}: {format_ms(top)}" for group, top in zip(groups, tops, strict=True))
        layers.append(Layer(kind="line", label="every step", colour="text", x=x, y=y, notes=tuple(notes)))
    if median_ms is not None:
        ends, level = (float(steps[0].step), float(steps[-1].step)), median_ms / scale.factor
        label = f"median {format_ms(median_ms)}"
        layers.append(Layer(kind="line", label=label, colour="muted", x=ends, y=(level, level)))
    slow = sorted((s for s in steps if s.is_slow), key=lambda s: -s.total_ms)[:MAX_SLOW_MARKS]
    if slow:
        layers.append(_slow_marks(slow, scale.factor, y_top))
    return Chart(
        title="Time per step",
        caption=_time_caption(groups, steps, y_top),
        x_label="step",
        y_label=axis_label("time", scale.unit),
        y_unit=scale.unit,
        layers=tuple(layers),
        bands=tuple(Band(start=first - 0.5, end=last + 0.5, label=what) for first, last, what in timeline.windows),
        y_range=None if y_top is None else (0.0, y_top / scale.factor),
    )


def number_charts(steps: Sequence[StepSample]) -> tuple[Chart, ...]:
    """Loss, gradient norm and, where it moved, the scaler's scale; steps where one is not finite are marked."""
    charts = [
        _number_chart("loss", "forward", steps, [s.loss for s in steps]),
        _number_chart("gradient norm", "backward", steps, [s.gradient_norm for s in steps]),
    ]
    scales = [s.scaler_scale for s in steps]
    if len({value for value in scales if value is not None}) > 1:
        charts.append(_number_chart("loss scale", "optimizer", steps, scales))
    return tuple(chart for chart in charts if has_curve(chart))


def _stage_bands(
    samples: Sequence[MemorySample], places: Sequence[float], allocated: Sequence[float | None]
) -> list[Layer]:
    """The area under each stretch between two boundaries of one step, in the colour of the stage that ran there."""
    points: dict[str, tuple[list[float], list[float | None]]] = {stage: ([], []) for stage in STAGES}
    for index, (here, after) in enumerate(itertools.pairwise(samples)):
        if here.step == after.step:
            x, y = points[STAGE_AFTER.get(here.boundary, "other")]
            start, end = places[index], places[index + 1]
            x.extend((start, start, end, end, end))
            y.extend((0.0, allocated[index], allocated[index + 1], 0.0, None))
    return [
        Layer(kind="fill", label=stage, colour=stage, x=tuple(x), y=tuple(y)) for stage, (x, y) in points.items() if x
    ]


def _window_bands(timeline: Timeline, clock: AxisScale) -> tuple[Band, ...]:
    """From the first sample of a window's first step to the first one after its last: with what it took to write."""
    steps = [s.step for s in timeline.memory]
    places = [s.at_s * 1000 / clock.factor for s in timeline.memory]
    bands = []
    for first, last, what in timeline.windows:
        start, end = bisect.bisect_left(steps, first), bisect.bisect_right(steps, last)
        if start < end:
            bands.append(Band(start=places[start], end=places[min(end, len(places) - 1)], label=what))
    return tuple(bands)


def _stage_layer(stage: str, place: int, groups: Sequence[Sequence[StepSample]], factor: float) -> Layer:
    full = [[step for step in group if step.stage_ms] for group in groups]
    means = [statistics.fmean(_stage_ms(step)[place] for step in group) if group else 0.0 for group in full]
    notes = tuple(
        f"step {group[0].step}{f' to {group[-1].step}' if len(group) > 1 else ''}: {stage} {format_ms(mean)}"
        for group, mean in zip(groups, means, strict=True)
    )
    return Layer(
        kind="bar",
        label=stage,
        colour="extra" if stage == RECORDER else stage,
        x=tuple((group[0].step + group[-1].step) / 2 for group in groups),
        y=tuple(mean / factor for mean in means),
        notes=notes,
    )


def _stage_ms(step: StepSample) -> tuple[float, ...]:
    """Of every stage and, last, of the recorder, which has what no stage has."""
    return (*step.stage_ms, max(0.0, round(step.total_ms - sum(step.stage_ms), 6)))


def _slow_marks(slow: Sequence[StepSample], factor: float, y_top: float | None) -> Layer:
    ceiling = math.inf if y_top is None else y_top * 0.97
    return Layer(
        kind="points",
        label="slow step",
        colour="alert",
        x=tuple(float(s.step) for s in slow),
        y=tuple(min(s.total_ms, ceiling) / factor for s in slow),
        notes=tuple(f"step {s.step} is slow: {format_ms(s.total_ms)}" for s in slow),
    )


def _time_caption(groups: Sequence[Sequence[StepSample]], steps: Sequence[StepSample], y_top: float | None) -> str:
    parts = ["Stages and the recorder's own time on top of each other."]
    num_full = sum(bool(step.stage_ms) for step in steps)
    if num_full < len(steps):
        parts.append(
            f"Stages are known of the {num_full:,} of {format_count(len(steps), 'step')} that were recorded in full; "
            "the line is the length of every step."
        )
    if len(groups[0]) > 1:
        parts.append(f"Each bar is the mean of {len(groups[0])} steps.")
    if y_top is not None:
        taller = [step for step in steps if step.total_ms > y_top]
        longest = max(taller, key=lambda step: step.total_ms)
        what = f"the longest is step {longest.step:,} with {format_ms(longest.total_ms)}"
        parts.append(f"Cut off at the top: {format_count(len(taller), 'step')}; {what}.")
    return " ".join(parts)


def _number_chart(label: str, stage: str, steps: Sequence[StepSample], values: Sequence[float | None]) -> Chart:
    seen = [(step.step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    broken = [step for step, value in seen if not math.isfinite(value)]
    caption = f"Not finite at {format_count(len(broken), 'step')}, first at step {broken[0]:,}." if broken else ""
    line = SeriesLine(label=label, x=tuple(float(at) for at, _ in seen), y=tuple(y for _, y in seen), stage=stage)
    marks = ((float(broken[0]), "not finite"),) if broken else ()
    chart = series_chart(Series(title=label.capitalize(), y_label=label, y_unit="", lines=(line,), marks=marks))
    return replace(chart, caption=" ".join(filter(None, (caption, chart.caption))))
