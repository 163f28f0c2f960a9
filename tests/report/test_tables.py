"""The tables of memory by stage, of a device's stages, and of calls that made steps wait."""

import dataclasses
import json

from efprof.model import STAGES, Metric, Report, SourceLine, StallLine
from efprof.report.json_form import render_json
from efprof.report.page.html import render_html
from efprof.report.tables import device_table, largest_jump_sentence, stall_table
from tests.report.report_sample import HOSTILE, MIB, make_measurements, make_report


def report_with(**changes: object) -> Report:
    return make_report(measurements=dataclasses.replace(make_measurements(), **changes))  # type: ignore[arg-type]


def test_the_largest_jump_names_its_boundary_and_step() -> None:
    deltas = [
        dataclasses.replace(delta, largest_jump_bytes=place * MIB, largest_jump_step=7)
        for place, delta in enumerate(make_measurements().stage_deltas)
    ]
    assert largest_jump_sentence(deltas) == (
        "Largest jump: 4.00 MiB up to the instant after the optimizer's step in step 7."
    )


def make_stall(call: str = "gc.collect", step_ms: float = 21.25) -> StallLine:
    blame = SourceLine(file="train.py", line=12, function="train", text="gc.collect()")
    return StallLine(blame=blame, call=call, count_per_step=0.5, step_ms=step_ms)


def test_page_and_json_have_the_calls_that_make_a_step_wait() -> None:
    assert stall_table([make_stall()]).rows == (("`gc.collect`", "`train.py:12`", 0.5, 21.25),)
    report = report_with(stalls=(make_stall(HOSTILE), make_stall()))
    page = render_html(report)
    assert "Calls that make a step wait" in page
    assert "21.2 ms" in page
    assert HOSTILE not in page
    stalls = json.loads(render_json(report))["measurements"]["stalls"]
    assert [stall["call"] for stall in stalls] == [HOSTILE, "gc.collect"]


def test_the_page_shows_the_stages_of_a_device_beside_the_host_s() -> None:
    samples = {f"{stage}_ms": (3.0,) for stage in STAGES} | {f"{stage}_device_ms": (7.25,) for stage in STAGES}
    samples["device_idle_ms"] = (0.0, 0.0, 4.5)  # of the mean a gain may be, not of the median
    metrics = tuple(Metric(name=name, label=name, unit="ms", samples=values) for name, values in samples.items())
    assert device_table(metrics).rows == (*((stage, 3.0, 7.25) for stage in STAGES), ("idle, mean, at most", "", 1.5))
    html = render_html(report_with(metrics=metrics))
    assert '<td>forward</td><td class="figure">3.00 ms</td><td class="figure">7.25 ms</td>' in html
    assert "on the device" not in render_html(make_report())
    assert "make a step wait" not in render_html(make_report())
