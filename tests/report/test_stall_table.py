"""The table of calls that made steps wait."""

import dataclasses
import json

from efprof.model import Report, SourceLine, StallLine
from efprof.report.html import render_html
from efprof.report.json_form import render_json
from efprof.report.markdown import render_markdown
from efprof.report.stall_table import MAX_ROWS, stall_rows
from tests.report.report_sample import HOSTILE, make_measurements, make_report


def make_stall(**changes: object) -> StallLine:
    blame = SourceLine(file="train.py", line=12, function="train", text="gc.collect()")
    fields: dict[str, object] = {"blame": blame, "call": "gc.collect", "count_per_step": 0.5, "step_ms": 21.25}
    return StallLine(**(fields | changes))  # type: ignore[arg-type]


def report_with(*stalls: StallLine) -> Report:
    return make_report(measurements=dataclasses.replace(make_measurements(), stalls=stalls))


def test_a_row_has_the_call_its_line_and_what_it_costs() -> None:
    assert stall_rows([make_stall()]) == (("gc.collect", "train.py:12", "0.5", "21.2 ms"),)


def test_the_most_expensive_are_kept() -> None:
    stalls = [make_stall(step_ms=float(1000 - number)) for number in range(100)]
    assert stall_rows(stalls) == stall_rows(stalls[:MAX_ROWS])
    assert len(stall_rows(stalls)) == MAX_ROWS


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


def test_a_run_without_such_calls_has_no_such_table() -> None:
    assert "make a step wait" not in render_html(make_report()) + render_markdown(make_report())
