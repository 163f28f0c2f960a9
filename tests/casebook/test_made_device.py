"""The cases that need a device, on one that our model of the allocator makes: every audit is made of their runs."""

from pathlib import Path

import pytest

from efprof.commands.report import analyse
from tests.casebook._cases import all_cases
from tests.casebook._made_device import made_run

CASES = {case.name: case for case in all_cases() if case.device is not None}
NUM_STEPS = {"unused_headroom": 54, "fragmented_checkpoints": 18}
"""As many as the audit asks for, and as show the fault; else these:"""
FEW_STEPS = 10


def findings_in(folder: Path, name: str, *, is_healthy: bool) -> list[tuple[str, str]]:
    """(audit id, blamed place) of every finding; no audit may break."""
    case = CASES[name]
    made_run(case, folder, is_healthy=is_healthy, num_steps=NUM_STEPS.get(name, FEW_STEPS))
    report = analyse(folder, case.budget_bytes)
    assert [result.audit_id for result in report.audits if result.status == "errored"] == []
    return [(result.audit_id, str(finding.blame)) for result in report.audits for finding in result.findings]


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found_on_the_marked_line_and_nothing_else(name: str, tmp_path: Path) -> None:
    ((audit, line),) = CASES[name].faults
    found = findings_in(tmp_path / "run", name, is_healthy=False)
    assert found == [(audit, f"tests/casebook/{name}.py:{line}")]


@pytest.mark.parametrize("name", CASES)
def test_its_healthy_twin_has_no_finding(name: str, tmp_path: Path) -> None:
    assert findings_in(tmp_path / "run", name, is_healthy=True) == []
