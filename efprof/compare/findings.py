"""The findings of two runs, paired by the keys they keep when lines move."""

from typing import Literal

from efprof.model import AuditResult, Finding, FindingChange, Report

_SEVERITIES = ("high", "medium", "low")
_Located = tuple[AuditResult, Finding]


def compare_findings(base: Report, head: Report) -> tuple[FindingChange, ...]:
    """Added, unchecked, kept and gone, in this order, the most severe first.

    A finding is `unchecked` where the other run lacks what its audit needs: nobody knows whether it is there.
    """
    of_base, of_head = _by_key(base), _by_key(head)
    kept = [_change(key, "kept", *of_head[key]) for key in _sorted(of_head) if key in of_base]
    added = [_missing(key, *of_head[key], "added", base, "base") for key in _sorted(of_head) if key not in of_base]
    gone = [_missing(key, *of_base[key], "gone", head, "head") for key in _sorted(of_base) if key not in of_head]
    order = ("added", "unchecked", "kept", "gone")
    return tuple(sorted((*added, *kept, *gone), key=lambda finding: order.index(finding.change)))


def _by_key(report: Report) -> dict[str, _Located]:
    return {audit.key_of(finding): (audit, finding) for audit in report.audits for finding in audit.findings}


def _sorted(findings: dict[str, _Located]) -> list[str]:
    return sorted(findings, key=lambda key: _SEVERITIES.index(findings[key][1].severity))


def _missing(
    key: str, audit: AuditResult, finding: Finding, change: Literal["added", "gone"], other: Report, side: str
) -> FindingChange:
    """A finding the other run does not have: because it is not there, or because nobody could look."""
    there = next((result for result in other.audits if result.audit_id == audit.audit_id), None)
    if there is not None and there.status in ("passed", "failed"):
        return _change(key, change, audit, finding)
    why = there.reason if there is not None else "its report has no such check."
    return _change(key, "unchecked", audit, finding, f" Not looked for in {side}: {why}")


def _change(
    key: str,
    change: Literal["added", "gone", "kept", "unchecked"],
    audit: AuditResult,
    finding: Finding,
    remark: str = "",
) -> FindingChange:
    return FindingChange(
        key=key,
        change=change,
        audit_id=audit.audit_id,
        headline=finding.headline,
        location=str(finding.blame),
        message=finding.message + remark,
    )
