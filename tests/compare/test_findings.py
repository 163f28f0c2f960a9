"""Findings are paired by the keys that survive moved lines."""

from efprof.compare.comparison import compare_findings
from efprof.model import AuditResult
from tests.compare.reports import failed_audit, make_finding, make_report

READ = make_finding("print(loss.item())")
STALL = make_finding("for batch in loader:")


def passed(audit_id: str) -> AuditResult:
    """An audit that found nothing."""
    return AuditResult(audit_id=audit_id, status="passed", reason="100 steps")


def test_a_finding_whose_line_moved_is_kept() -> None:
    base = make_report(audits=(failed_audit("blocking_scalar_read", READ),))
    moved = make_finding("print(loss.item())", line=99)
    head = make_report(audits=(failed_audit("blocking_scalar_read", moved),))
    (change,) = compare_findings(base, head)
    assert (change.change, change.location) == ("kept", "train.py:99")
    assert change.key == "blocking_scalar_read:train.py::train::print(loss.item())"


def test_findings_are_added_and_gone_by_audit_and_the_most_severe_come_first() -> None:
    base = make_report(audits=(failed_audit("blocking_scalar_read", READ), passed("input_stall")))
    head = make_report(audits=(passed("blocking_scalar_read"), failed_audit("input_stall", STALL)))
    assert [(change.change, change.audit_id) for change in compare_findings(base, head)] == [
        ("added", "input_stall"),
        ("gone", "blocking_scalar_read"),
    ]
    base = make_report(audits=(failed_audit("first", READ), passed("second")))
    head = make_report(audits=(passed("first"), failed_audit("second", READ)))
    assert [change.change for change in compare_findings(base, head)] == ["added", "gone"]
    low, high = make_finding("a()", severity="low"), make_finding("b()", severity="high")
    audit = failed_audit("blocking_scalar_read", low, high)
    found = compare_findings(make_report(audits=(audit,)), make_report(audits=(audit,)))
    assert [change.key.rpartition(":")[2] for change in found] == ["b()", "a()"]


def test_a_finding_is_neither_gone_nor_added_where_its_audit_could_not_look() -> None:
    base = make_report(audits=(failed_audit("blocking_scalar_read", READ),))
    blind = AuditResult(audit_id="blocking_scalar_read", status="not_applicable", reason="steps.jsonl is missing.")
    (change,) = compare_findings(base, make_report(audits=(blind,)))
    assert change.change == "unchecked"
    assert change.message == "Each step waits for the device. Not looked for in head: steps.jsonl is missing."
    (change,) = compare_findings(make_report(), make_report(audits=(failed_audit("input_stall", STALL),)))
    assert change.change == "unchecked"
    assert change.message.endswith("Not looked for in base: its report has no such check.")
