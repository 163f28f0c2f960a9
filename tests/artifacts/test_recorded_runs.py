"""The whole analysis over real recordings: the casebook's cases, as `make fixtures` recorded them."""

import json
from pathlib import Path

import pytest

from efprof.artifacts.run_file import read_run_file
from efprof.commands.report import analyse, render
from efprof.model import Report
from tests.casebook._cases import find_cases
from tests.support.record_fixtures import PROJECT

RUNS = Path(__file__).parents[1] / "runs"
CASES = {case.name: case for case in find_cases() if len(case.faults) == 1}
MARK = "# fault"
MAX_BYTES = 20 * 1024**2
"""CONTRIBUTING names it: room for some audits more."""
BEFORE_LINES_WERE_WATCHED = {"growing_tensors": "class HardExamples:"}
"""Older recordings: their holders are reported where they belong, and it is said that no line was observed."""


def findings_of(report: Report) -> list[tuple[str, str]]:
    """(audit id, text of the blamed line) of every finding."""
    return [(result.audit_id, finding.blame.text) for result in report.audits for finding in result.findings]


@pytest.mark.parametrize("name", CASES)
def test_a_sick_run_has_its_fault_found_on_the_marked_line_and_nothing_else(name: str) -> None:
    report = analyse(RUNS / f"{name}-sick", CASES[name].budget_bytes)
    ((found, text),) = findings_of(report)
    assert found == CASES[name].faults[0][0]
    assert text.endswith(BEFORE_LINES_WERE_WATCHED.get(name, MARK))
    (finding,) = [one for result in json.loads(render(report, "json"))["audits"] for one in result["findings"]]
    assert finding["message"].endswith(".")
    assert finding["blame"]["line"] > 0
    assert finding["fix"]["summary"]
    assert finding["gain"]["basis"] in ("measured bound", "replay", "model")
    is_told = "its lines were not watched" in finding["why"]
    assert is_told == (name in BEFORE_LINES_WERE_WATCHED)


@pytest.mark.parametrize("name", CASES)
def test_its_healthy_twin_has_no_finding_and_no_broken_audit(name: str) -> None:
    report = analyse(RUNS / f"{name}-healthy", CASES[name].budget_bytes)
    assert findings_of(report) == []
    assert [result.audit_id for result in report.audits if result.status == "errored"] == []


def test_the_same_run_gives_the_same_report_byte_for_byte_in_every_form() -> None:
    first, second = (analyse(RUNS / "retained_graph-sick") for _ in range(2))
    for form in ("text", "json", "markdown", "html"):
        assert render(first, form) == render(second, form), form


def test_fixtures_stay_small_enough_for_a_repository() -> None:
    assert sum(path.stat().st_size for path in RUNS.rglob("*") if path.is_file()) < MAX_BYTES


def test_recorded_runs_do_not_name_the_machine_that_they_were_made_on() -> None:
    folders = {read_run_file(path.parent).working_folder for path in RUNS.glob("*/run.json")}
    assert folders == {PROJECT}


def test_a_slow_loader_s_slowest_line_is_named_beside_the_one_that_is_to_blame() -> None:
    (finding,) = [found for one in analyse(RUNS / "input_stall_worker-sick").audits for found in one.findings]
    assert finding.blame.text.startswith("loader = DataLoader(")
    assert "`counts[word] += 1  # slow`" in finding.why
