"""What the casebook expects of its programs, and how it tells that a verdict was not the same each time."""

from collections import Counter
from pathlib import Path

from efprof.commands.report import analyse
from tests.casebook.__main__ import score, table
from tests.casebook._cases import all_cases

CASES = {case.name: case for case in all_cases()}
RUNS = Path(__file__).parents[1] / "runs"


def test_every_case_has_a_name_of_its_own_and_without_a_fault_no_sick_side() -> None:
    assert [name for name, count in Counter(case.name for case in all_cases()).items() if count > 1] == []
    folders = {"bounded", "lookalikes"}
    healthy_alone = {name for name, case in CASES.items() if case.path.parent.name in folders}
    assert {name for name, case in CASES.items() if not case.faults} == healthy_alone
    assert [name for name in healthy_alone if "--healthy" in CASES[name].path.read_text()] == []


def test_the_table_says_how_often_the_verdict_was_the_same() -> None:
    case = CASES["retained_graph"]
    sick, healthy = analyse(RUNS / "retained_graph-sick"), analyse(RUNS / "retained_graph-healthy")
    found, missed = score(case, sick, healthy, None), score(case, healthy, healthy, None)
    (row,) = [line for line in table([found, missed, found]) if line.startswith("| retained_graph |")]
    assert "| 2 of 3 |" in row


def test_a_finding_in_a_program_without_a_fault_is_a_false_alarm() -> None:
    case = CASES["trimmed_window"]
    leaking = analyse(RUNS / "growing_tensors-sick")
    wrong = score(case, leaking, leaking, None)
    assert (wrong.is_right, wrong.extra, len(wrong.false_alarms)) == (False, (), 1)
