"""The whole analysis over real recordings: the casebook's cases, as `make fixtures` recorded them."""

import json
from pathlib import Path

import pytest

from efprof.commands.report import analyse, render
from efprof.model import Report
from tests.casebook._cases import find_cases

RUNS = Path(__file__).parents[1] / "runs"
CASES = {case.name: case for case in find_cases() if len(case.faults) == 1}
MARK = "# fault"
BEFORE_LINES_WERE_WATCHED = {"growing_tensors": "class HardExamples:"}
"""Older recordings: their holders are reported where they belong, and it is said that no line was observed."""


def findings_of(report: Report) -> list[tuple[str, str]]:
    """(audit id, text of the blamed line) of every finding."""
    return [(result.audit_id, finding.blame.text) for result in report.audits for finding in result.findings]


@pytest.mark.parametrize("name", CASES)
def test_a_sick_run_has_its_fault_found_on_the_marked_line_and_nothing_else(name: str) -> None:
    ((found, text),) = findings_of(analyse(RUNS / f"{name}-sick", CASES[name].budget_bytes))
    assert found == CASES[name].faults[0][0]
    assert text.endswith(BEFORE_LINES_WERE_WATCHED.get(name, MARK))


@pytest.mark.parametrize("name", BEFORE_LINES_WERE_WATCHED)
def test_an_older_recording_says_that_lines_were_not_observed(name: str) -> None:
    (finding,) = [one for result in analyse(RUNS / f"{name}-sick").audits for one in result.findings]
    assert "lines were not observed when this run was recorded" in finding.message


@pytest.mark.parametrize("name", CASES)
def test_its_healthy_twin_has_no_finding_and_no_broken_audit(name: str) -> None:
    report = analyse(RUNS / f"{name}-healthy", CASES[name].budget_bytes)
    assert findings_of(report) == []
    assert [result.audit_id for result in report.audits if result.status == "errored"] == []


@pytest.fixture(scope="module")
def same_twice() -> tuple[Report, Report]:
    """One run, analysed twice."""
    run = RUNS / "retained_graph-sick"
    return analyse(run), analyse(run)


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_the_same_run_gives_the_same_report_byte_for_byte(form: str, same_twice: tuple[Report, Report]) -> None:
    first, second = same_twice
    assert render(first, form) == render(second, form)


@pytest.mark.parametrize("name", CASES)
def test_the_json_form_names_line_fix_and_gain(name: str) -> None:
    report = json.loads(render(analyse(RUNS / f"{name}-sick", CASES[name].budget_bytes), "json"))
    (finding,) = [finding for result in report["audits"] for finding in result["findings"]]
    assert finding["blame"]["line"] > 0
    assert finding["fix"]["summary"]
    assert finding["gain"]["basis"] in ("measured bound", "replay", "model")
    assert {"key", "severity", "message", "blame", "fix", "gain", "evidence"} <= finding.keys()
    assert {"schema_version", "run", "metrics", "overhead", "audits"} <= report.keys()


def test_fixtures_stay_small_enough_for_a_repository() -> None:
    assert sum(path.stat().st_size for path in RUNS.rglob("*") if path.is_file()) < 16 * 1024**2
