"""At which of the lines that head changed its step got slower; by texts of two trees and the times of lines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from efprof.compare.blame import Hunk, changes_between, slower_at, slower_stage
from efprof.compare.comparison import compare_reports
from efprof.compare.times import SideTimes, TurnTimes
from efprof.model import LineTime, Report, SourceLine
from efprof.report.comparison_form import comparison_verdict
from efprof.report.json_form import render_comparison_json
from efprof.report.page.html import render_comparison_html
from tests.compare.reports import make_metric, make_report, step_metric

BASE = """\
def forward(x):
    x = x * 2
    return x

@torch.no_grad()
def other(x):
    return x
"""
HEAD = """\
import math

def forward(x):
    x = x * 2
    x = slow(x)
    return x

@torch.no_grad()
def other(x):
    return x + 1
"""


def write(folder: Path, **texts: str | bytes) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        content = text.encode() if isinstance(text, str) else text
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


def report_with(*lines: tuple[int, str, float], step_ms: float = 10.0) -> Report:
    """A line, or a function by its name, of model.py and its host time."""
    report = make_report(step_metric(*[step_ms] * 20), make_metric("forward_ms", "ms", *[step_ms / 2] * 20))
    times = tuple(
        LineTime(
            blame=SourceLine(file="model.py", line=line, function=function),
            is_function=bool(function),
            host_ms=ms,
            device_ms=0.0,
        )
        for line, function, ms in lines
    )
    return replace(report, measurements=replace(report.measurements, lines=times))


def test_hunks_have_the_numbers_of_both_sides_and_the_functions_that_they_lie_in(tmp_path: Path) -> None:
    base = write(tmp_path / "base", model_py=BASE, same_py="x = 1\n", weights_bin=b"\xff\0")
    head = write(tmp_path / "head", model_py=HEAD, same_py="x = 1\n", weights_bin=b"\xff\1", new_yaml="lr: 1\n")
    (head / "link").symlink_to(tmp_path)
    (head / "__pycache__").mkdir()
    (head / "__pycache__" / "model.pyc").write_text("made by Python")
    changes = changes_between(base, head)
    assert changes.hunks == (
        Hunk(file="model.py", base=range(1, 1), head=range(1, 3), functions=frozenset()),
        Hunk(file="model.py", base=range(3, 3), head=range(5, 6), functions=frozenset({3})),
        Hunk(file="model.py", base=range(7, 8), head=range(10, 11), functions=frozenset({8})),
        Hunk(file="new.yaml", base=range(1, 1), head=range(1, 2), functions=frozenset()),
    )
    assert {"--- a/model.py", "+    x = slow(x)", "-    return x", "+lr: 1"} <= {*changes.diff}
    assert not any("weights" in line for line in changes.diff)


def test_a_long_diff_is_cut_and_says_so(tmp_path: Path) -> None:
    base, head = write(tmp_path / "base"), write(tmp_path / "head", long_py="x = 1\n" * 1000)
    diff = changes_between(base, head).diff
    assert len(diff) == 401
    assert diff[-1] == "... and 603 more lines"


HUNKS = (
    Hunk(file="model.py", base=range(3, 3), head=range(5, 6), functions=frozenset({3})),
    Hunk(file="model.py", base=range(7, 8), head=range(10, 11), functions=frozenset({8})),
)


@pytest.mark.parametrize(
    ("base", "head", "found"),
    [
        ([(2, "", 4.0)], [(4, "", 5.5), (5, "", 2.0)], [(5, 2.0)]),  # what grew beside it is no line of head's
        ([(7, "", 4.0)], [(10, "", 4.1)], []),
        ([(7, "", 4.0)], [(10, "", 7.0), (5, "", 1.0)], [(10, 3.0), (5, 1.0)]),
        ([(1, "forward", 1.0)], [(3, "forward", 3.0)], [(3, 2.0)]),
        ([(1, "forward", 1.0)], [(2, "forward", 3.0)], []),  # another function of that name
        ([], [(4, "", 9.0)], []),
    ],
)
def test_a_line_of_the_diff_is_blamed_for_what_it_takes_more_than_what_it_replaces(
    base: list[tuple[int, str, float]], head: list[tuple[int, str, float]], found: list[tuple[int, float]]
) -> None:
    grown = slower_at([report_with(*base)] * 2, [report_with(*head)] * 2, HUNKS, longer_ms=3.0)
    assert [(one.blame.line, pytest.approx(one.longer_ms)) for one in grown] == found


def test_a_slower_head_is_told_with_its_line_or_else_its_stage(tmp_path: Path) -> None:
    slower = SideTimes(pairs=tuple(TurnTimes(pairs=((0.010, 0.013),) * 12, is_base_first=n % 2 == 0) for n in range(4)))
    base, head = write(tmp_path / "base", model_py=BASE), write(tmp_path / "head", model_py=HEAD)
    changes = changes_between(base, head)
    sides = [report_with()] * 2, [report_with((5, "", 2.5), step_ms=13.0)] * 2
    comparison = compare_reports(*sides, forced=False, times=slower, changes=changes)
    word, said = comparison_verdict(comparison)
    assert word == "worse"
    assert "Each step takes 2.50 ms longer at model.py:5, which head changed." in said
    assert [picture.title for picture in comparison.pictures] == ["Head's turns against base's"]
    page = render_comparison_html(comparison, sides[1][0])
    assert "<h3>Head&#39;s turns against base&#39;s</h3>" in page
    assert "<ins>+    x = slow(x)</ins>\n" in page
    assert [len(line["x"]) for line in json.loads(render_comparison_json(comparison))["pictures"][0]["lines"]] == [
        48,
        4,
    ]
    sides = [report_with()] * 2, [report_with((4, "", 2.5), step_ms=13.0)] * 2
    comparison = compare_reports(*sides, forced=False, times=slower, changes=changes)
    assert (comparison.slower_at, comparison.slower_stage) == ((), "forward")
    assert "Most of that lies in forward." in comparison_verdict(comparison)[1]
    assert slower_stage(comparison.metrics, 100.0) == ""
