"""Pictures as plain data."""

import dataclasses
import math

from efprof.model import BOUNDARIES, MemorySample, SeriesLine, Timeline
from efprof.report.charts.chart import Chart, Layer, thin
from efprof.report.charts.evidence_charts import series_chart
from efprof.report.charts.pictures import figure_of
from efprof.report.charts.timeline_charts import MAX_BARS, memory_chart, number_charts, time_chart
from efprof.report.wording import show
from tests.report.report_sample import (
    make_measurements,
    make_steps,
    make_window_memory,
)


def layer_named(chart: Chart | None, label: str) -> Layer:
    return next(layer for layer in chart.layers if layer.label == label)


def test_thinning_keeps_ends_highs_and_lows_and_leaves_short_curves_alone() -> None:
    values = [math.sin(n / 500) for n in range(10_000)]
    values[4321], values[7777] = 9.0, -9.0
    kept = thin(values, 200)
    assert len(kept) <= 200
    assert {0, 4321, 7777, 9999} <= set(kept)
    assert kept == sorted(kept)
    assert thin([1.0, math.nan, None], 200) == [0, 1, 2]


def test_memory_is_coloured_by_the_stage_that_ran() -> None:
    chart = memory_chart(make_measurements())
    assert {layer.label for layer in chart.layers if layer.kind == "fill"} == {  # type: ignore[union-attr]
        "forward",
        "backward",
        "optimizer",
        "other",
    }
    assert layer_named(chart, "allocated").notes[1] == f"step 0, {BOUNDARIES[1]}"


def test_the_recorder_s_own_time_and_a_long_run_s_thinned_memory_are_drawn_and_said() -> None:
    (step,) = make_steps(1)
    charted = time_chart(Timeline(steps=(dataclasses.replace(step, total_ms=step.total_ms + 4.0),), memory=()), None)
    assert layer_named(charted, "recorder").notes == (f"step 0: recorder {show(4.0, 'ms')}",)
    samples = tuple(
        MemorySample(step=n, boundary="pre_forward", at_s=float(n), allocated_bytes=n, reserved_bytes=n)
        for n in range(5000)
    )
    measurements = make_measurements()
    measurements = type(measurements)(
        metrics=(),
        timeline=Timeline(steps=(), memory=samples),
        stage_deltas=(),
        overhead=None,
        memory_source="the resident set",
    )
    chart = memory_chart(measurements)
    assert "of 5,000 samples" in chart.caption
    assert {layer.kind for layer in chart.layers} == {"line"}


def test_one_long_step_does_not_flatten_the_others_and_many_share_bars() -> None:
    chart = time_chart(make_measurements().timeline, 36.0)
    assert chart.y_range[1] < 200
    assert "the longest is step 0 with 1.08 s" in chart.caption
    assert max(y for y in layer_named(chart, "slow step").y if y is not None) < chart.y_range[1]
    chart = time_chart(Timeline(steps=make_steps(1001), memory=()), 36.0)
    assert len(layer_named(chart, "forward").x) <= MAX_BARS
    assert "Each bar is the mean of 3 steps." in chart.caption


def test_windows_are_marked_and_a_loss_where_it_first_breaks() -> None:
    chart = time_chart(make_measurements().timeline, 36.0)
    assert [(band.start, band.end) for band in chart.bands] == [(9.5, 12.5), (39.5, 41.5)]
    loss = number_charts(make_steps())[0]
    assert loss.marks == ((58.0, "not finite"),)
    assert loss.layers[0].y[-1] is None
    assert loss.caption == "Not finite at 6 steps, first at step 58."


def test_layers_are_told_together_with_their_notes_and_drawn_as_steps() -> None:
    figure = figure_of(series_chart(make_window_memory()))
    assert figure["layout"]["hovermode"] == "x unified"
    assert all("%{text}" in trace["hovertemplate"] for trace in figure["data"])
    assert figure["data"][0]["text"][0] == ""
    assert figure["data"][2]["text"][0].startswith("<br>  ...")
    assert "<" not in figure["data"][2]["text"][0].removeprefix("<br>")
    chart = series_chart(make_window_memory())
    assert {trace["line"]["shape"] for trace in figure_of(chart)["data"]} == {"hv"}


def test_a_line_over_the_stack_is_no_part_of_it() -> None:
    series = make_window_memory()
    above = SeriesLine(
        label="reserved", x=series.lines[0].x, y=tuple(9e9 for _ in series.lines[0].x), is_over_stack=True
    )
    chart = series_chart(dataclasses.replace(series, lines=(*series.lines, above), bands=()))
    assert [layer.kind for layer in chart.layers] == ["stack", "stack", "stack", "line"]
    assert "stackgroup" not in figure_of(chart)["data"][-1]
    assert chart.layers[-1].colour == "text"
