"""The table of versions: what pytest counted, and which row a new one replaces."""

from collections import Counter
from pathlib import Path

import pytest

from efprof.recorder.hooks.torch_versions import OLDEST, name_of
from tests.support.versions import MAX_NAMES, RULE, Outcome, outcome_of, requirement_of, with_row

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase name="test_a"/><testcase name="test_b"/>
<testcase name="test_c"><failure message="wrong"/></testcase>
<testcase name="test_d"><error message="no fixture"/></testcase>
<testcase name="test_e"><skipped message="needs memray"/></testcase>
<testcase name="test_f"><skipped message="needs memray"/></testcase>
<testcase name="test_g"><skipped message="needs CUDA"/></testcase>
</testsuite></testsuites>"""


def test_passed_failed_and_skipped_tests_are_counted_and_named(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert outcome_of(tmp_path / "junit.xml").cells == (
        "2", "2: `test_c`, `test_d`", "3: 2 needs memray; 1 needs CUDA",
    )  # fmt: skip


def test_of_many_failed_tests_the_first_are_named() -> None:
    failed = ("test[a]", "test[b]", *(f"test_{number}" for number in range(MAX_NAMES + 2)))
    outcome = Outcome(num_passed=0, failed=failed, skipped=Counter())
    assert outcome.cells[1].startswith(f"{MAX_NAMES + 4}: `test` (2), `test_0`, ")
    assert outcome.cells[1].endswith(", 3 other tests")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("oldest", f"torch=={name_of(OLDEST)}.0"), ("2.9", "torch==2.9.*"), ("2.14.1", "torch==2.14.1.*"),
     ("newest", "torch")],
)  # fmt: skip
def test_pip_is_asked_for_the_version(version: str, expected: str) -> None:
    assert requirement_of(version) == expected


def test_a_row_takes_the_place_of_the_one_of_its_version_and_python_alone() -> None:
    text = ""
    for row in (
        "| 2.9 | 3.11.7 | old |",
        "| 2.11 | 3.11.7 | old |",
        "| 2.9 | 3.12.1 | old |",
        "| 2.9 | 3.11.7 | new |",
    ):
        text = with_row(text, row)
    assert text.split(RULE)[1].split("\n")[1:-1] == [
        "| 2.9 | 3.11.7 | new |", "| 2.11 | 3.11.7 | old |", "| 2.9 | 3.12.1 | old |",
    ]  # fmt: skip
