"""Pictures as plain data."""

import json
import math

from efprof.model import BOUNDARIES, Intervals, MemorySample, Series, SeriesLine, Timeline
from efprof.report.chart import Band, Chart, Layer, band_labels, scale_for, thin
from efprof.report.evidence_charts import MAX_BLOCKS, series_chart, tracks_chart
from efprof.report.interactive import figure_of, label_text
from efprof.report.printed import svg_of
from efprof.report.step_table import MAX_STEPS, left_out_sentence, shown_steps
from efprof.report.timeline_charts import MAX_BARS, memory_chart, number_charts, time_chart
from tests.report.report_sample import HOSTILE, make_measurements, make_steps, memory_finding, time_finding


def layer_named(chart: Chart | None, label: str) -> Layer:
    assert chart is not None
    return next(layer for layer in chart.layers if layer.label == label)


def test_thinning_keeps_ends_highs_and_lows() -> None:
    values = [math.sin(n / 500) for n in range(10_000)]
    values[4321], values[7777] = 9.0, -9.0
    kept = thin(values, 200)
    assert len(kept) <= 200
    assert {0, 4321, 7777, 9999} <= set(kept)
    assert kept == sorted(kept)


def test_thinning_leaves_short_curves_alone() -> None:
    assert thin([1.0, math.nan, None], 200) == [0, 1, 2]


def test_memory_is_coloured_by_the_stage_that_ran() -> None:
    chart = memory_chart(make_measurements())
    assert {layer.label for layer in chart.layers if layer.kind == "fill"} == {  # type: ignore[union-attr]
        "data",
        "forward",
        "backward",
        "optimizer",
        "other",
    }
    assert layer_named(chart, "allocated").notes[1] == f"step 0, {BOUNDARIES[1]}"


def test_memory_of_a_long_run_is_thinned_and_says_so() -> None:
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
    assert chart is not None
    assert "of 5,000 samples" in chart.caption
    assert {layer.kind for layer in chart.layers} == {"line"}


def test_one_long_step_does_not_flatten_the_others() -> None:
    chart = time_chart(make_measurements().timeline, 36.0)
    assert chart is not None
    assert chart.y_top is not None
    assert chart.y_top < 200
    assert "the longest is step 0 with 1.08 s" in chart.caption
    assert max(y for y in layer_named(chart, "slow step").y if y is not None) < chart.y_top


def test_many_steps_share_bars() -> None:
    chart = time_chart(Timeline(steps=make_steps(1001), memory=()), 36.0)
    assert len(layer_named(chart, "forward").x) <= MAX_BARS
    assert chart is not None
    assert "Each bar is the mean of 3 steps." in chart.caption


def test_windows_are_marked() -> None:
    chart = time_chart(make_measurements().timeline, 36.0)
    assert chart is not None
    assert [(band.start, band.end) for band in chart.bands] == [(9.5, 12.5), (39.5, 41.5)]


def test_a_loss_that_breaks_is_marked_where_it_first_does() -> None:
    loss = number_charts(make_steps())[0]
    assert loss.marks == ((58.0, "not finite"),)
    assert loss.layers[0].y[-1] is None
    assert loss.caption == "Not finite at 6 steps, first at step 58."


def test_axes_take_the_largest_fitting_unit() -> None:
    assert scale_for([3 * 1024**3, math.nan], "bytes").unit == "GiB"
    assert scale_for([0.2], "ms").unit == "us"
    assert scale_for([], "bytes_per_step").unit == "B/step"


def test_blocks_beyond_the_limit_are_counted() -> None:
    evidence = next(one for one in time_finding().evidence if isinstance(one, Intervals))
    many = Intervals(title="many", intervals=evidence.intervals * 300)
    chart = tracks_chart(many)
    assert len(chart.blocks) == MAX_BLOCKS
    assert f"{1500 - MAX_BLOCKS:,} shorter ones are left out" in chart.caption


def test_plotly_gets_no_markup_and_no_numbers_that_json_lacks() -> None:
    for evidence in (*memory_finding().evidence, *time_finding().evidence):
        if isinstance(evidence, Series):
            text = json.dumps(figure_of(series_chart(evidence)), allow_nan=False)
            assert "<script" not in text
    assert label_text(HOSTILE).startswith("&lt;script&gt;alert(")


def test_printed_pictures_repeat_to_the_byte_and_stand_hostile_labels() -> None:
    line = SeriesLine(label="_$x^{", x=(0.0, 1.0), y=(1.0, math.inf))
    series = Series(title="$", x_label="$y_", x_unit="", y_label=HOSTILE, y_unit="bytes", lines=(line, line))
    assert svg_of(series_chart(series)) == svg_of(series_chart(series))


def test_the_step_table_keeps_first_last_and_broken_steps() -> None:
    steps = make_steps(1000)
    shown = shown_steps(steps)
    assert len(shown) <= MAX_STEPS
    assert shown[0].step == 0
    assert shown[-1].step == 999
    assert "left out" in left_out_sentence(steps)
    assert left_out_sentence(make_steps(300)) == ""


def banded(*starts: float) -> Chart:
    layer = Layer(kind="bar", label="data", colour="data", x=tuple(map(float, range(1000))), y=(1.0,) * 1000)
    bands = tuple(Band(start=start, end=start + 2, label="profiler") for start in starts)
    return Chart(title="", caption="", x_label="", y_label="", y_unit="", layers=(layer,), bands=bands)


def test_a_band_whose_label_would_cover_another_has_none() -> None:
    assert band_labels(banded(5.0, 30.0, 300.0)) == ("profiler", "", "profiler")
    assert [note["text"] for note in figure_of(banded(5.0, 30.0))["layout"]["annotations"]] == ["profiler"]


def test_bars_too_many_for_gaps_touch() -> None:
    assert figure_of(banded())["layout"]["bargap"] == 0.0


def test_one_point_makes_no_curve() -> None:
    assert number_charts(make_steps()[:1]) == ()
    assert len(number_charts(make_steps()[:2])) == 2


def test_a_run_of_milliseconds_is_drawn_in_milliseconds() -> None:
    chart = memory_chart(make_measurements(1))
    assert chart is not None
    assert chart.x_label == "time since the first step (ms)"
    assert layer_named(chart, "allocated").x[-1] == 28.0
