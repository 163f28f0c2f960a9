"""The order of findings."""

import dataclasses

from efprof.model import AuditResult, Finding, Gain
from efprof.report.verdict import median_step_ms, peak_bytes, rank_findings
from tests.report.report_sample import make_report, make_run, memory_finding, numbers_finding, time_finding


def ranked_headlines(*findings: Finding) -> list[str]:
    audit = AuditResult(audit_id="some_audit", status="failed", reason="", findings=findings)
    return [item.finding.headline for item in rank_findings(make_report(audits=(audit,)))]


def test_severity_comes_before_gain_and_gains_of_different_kinds_are_compared_as_shares() -> None:
    small = dataclasses.replace(time_finding(), severity="high", gain=Gain(basis="model", explanation=""))
    large = dataclasses.replace(memory_finding(), severity="medium")
    assert ranked_headlines(large, small) == [small.headline, large.headline]
    assert ranked_headlines(time_finding(), memory_finding()) == [memory_finding().headline, time_finding().headline]


def test_why_the_run_ended_comes_before_everything() -> None:
    small = dataclasses.replace(time_finding(), severity="low", gain=Gain(basis="model", explanation=""))
    audits = (
        AuditResult(audit_id="oversized_peak", status="failed", reason="", findings=(memory_finding(),)),
        AuditResult(audit_id="out_of_memory", status="failed", reason="", findings=(small,)),
    )
    ended = make_report(audits=audits, run=make_run(ended="out_of_memory"))
    assert [item.audit_id for item in rank_findings(ended)] == ["out_of_memory", "oversized_peak"]
    survived = make_report(audits=audits)
    assert [item.audit_id for item in rank_findings(survived)] == ["oversized_peak", "out_of_memory"]


def test_ranks_count_from_one_whatever_the_order_of_the_audits() -> None:
    findings = (memory_finding(), time_finding(), numbers_finding())
    assert ranked_headlines(*findings) == ranked_headlines(*reversed(findings))
    assert [item.rank for item in rank_findings(make_report())] == [1, 2, 3]


def test_median_step_is_that_of_the_metric_and_the_peak_the_highest_boundary() -> None:
    report = make_report()
    samples = sorted(report.measurements.metrics[0].samples)
    assert median_step_ms(report) == (samples[len(samples) // 2] + samples[(len(samples) - 1) // 2]) / 2
    assert peak_bytes(report) == max(sample.allocated_bytes for sample in report.measurements.timeline.memory)
