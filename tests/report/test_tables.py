"""The tables of memory by stage, and of calls that made steps wait."""

import dataclasses
import json

from efprof.model import STAGES, Metric, Report, SourceLine, StallLine
from efprof.report.json_form import render_json
from efprof.report.page.html import render_html
from efprof.report.tables import (
    MAX_STALLS,
    device_table,
    largest_jump_sentence,
    stall_table,
)
from efprof.report.text_forms import render_markdown
from tests.report.report_sample import HOSTILE, MIB, make_measurements, make_report


def test_the_largest_jump_names_its_boundary_and_step() -> None:
    deltas = [
        dataclasses.replace(delta, largest_jump_bytes=place * MIB, largest_jump_step=7)
        for place, delta in enumerate(make_measurements().stage_deltas)
    ]
    assert largest_jump_sentence(deltas) == (
        "Largest jump: 4.00 MiB from the boundary before to `post_optimizer_step` in step 7."
    )


def make_stall(**changes: object) -> StallLine:
    blame = SourceLine(file="train.py", line=12, function="train", text="gc.collect()")
    fields: dict[str, object] = {"blame": blame, "call": "gc.collect", "count_per_step": 0.5, "step_ms": 21.25}
    return StallLine(**(fields | changes))  # type: ignore[arg-type]


def report_with(*stalls: StallLine) -> Report:
    return make_report(measurements=dataclasses.replace(make_measurements(), stalls=stalls))


def test_a_row_has_the_call_its_line_and_what_it_costs_and_the_most_expensive_are_kept() -> None:
    assert stall_table([make_stall()]).rows == (("`gc.collect`", "`train.py:12`", 0.5, 21.25),)
    stalls = [make_stall(step_ms=float(1000 - number)) for number in range(100)]
    assert stall_table(stalls) == stall_table(stalls[:MAX_STALLS])
    assert len(stall_table(stalls).rows) == MAX_STALLS


def test_page_and_markdown_show_the_calls_and_json_has_them_all() -> None:
    report = report_with(make_stall(call=HOSTILE), make_stall())
    page, text = render_html(report), render_markdown(report)
    for form in (page, text):
        assert "Calls that make a step wait" in form
        assert "train.py:12" in form
        assert "21.2 ms" in form
    assert HOSTILE not in page
    assert [stall["call"] for stall in json.loads(render_json(report))["measurements"]["stalls"]] == [
        HOSTILE, "gc.collect",
    ]  # fmt: skip


def on_a_device() -> Report:
    """The sample, with the times of its stages."""
    samples = {f"{stage}_ms": (3.0,) for stage in STAGES} | {f"{stage}_device_ms": (7.25,) for stage in STAGES}
    samples["device_idle_ms"] = (0.0, 0.0, 4.5)  # of the mean a gain may be, not of the median
    metrics = [Metric(name=name, label=name, unit="ms", samples=values) for name, values in samples.items()]
    report = make_report()
    measurements = dataclasses.replace(report.measurements, metrics=(*report.measurements.metrics, *metrics))
    return dataclasses.replace(report, measurements=measurements)


def test_page_and_markdown_show_the_stages_of_a_device_beside_the_host_s() -> None:
    report = on_a_device()
    assert device_table(report.measurements.metrics).rows == (
        *((stage, 3.0, 7.25) for stage in STAGES),
        ("idle, mean, at most", "", 1.5),
    )
    html, markdown = render_html(report), render_markdown(report)
    assert "Stages on the host and on the device</h3>" in html
    assert '<td>forward</td><td class="figure">3.00 ms</td><td class="figure">7.25 ms</td>' in html
    assert "| forward | 3.00 ms | 7.25 ms |" in markdown
    assert json.loads(render_json(report))["metrics"]["forward_device_ms"]["median"] == 7.25


def test_a_run_without_a_device_or_such_calls_has_no_such_table() -> None:
    report = make_report()
    every_form = render_html(report) + render_markdown(report)
    assert "on the device" not in every_form
    assert "make a step wait" not in every_form
