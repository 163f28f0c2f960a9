"""Whole comparisons, and what is refused."""

import pytest

from efprof.compare.comparison import compare_reports
from efprof.model import NotComparable
from tests.compare.reports import failed_audit, make_finding, make_metric, make_report, step_metric

PEAK = make_metric("peak_allocated_bytes", "bytes", 100e6, budget=0.005)
LARGER_PEAK = make_metric("peak_allocated_bytes", "bytes", 110e6, budget=0.005)


def test_a_larger_peak_fails_unless_a_budget_lets_it_pass_and_is_worse_all_the_same() -> None:
    comparison = compare_reports(make_report(PEAK), make_report(LARGER_PEAK), forced=False)
    assert comparison.is_failed
    assert comparison.metrics[0].effect == pytest.approx(0.1)
    comparison = compare_reports(
        make_report(PEAK), make_report(LARGER_PEAK), forced=False, budgets={"peak_allocated_bytes": 0.2}
    )
    assert not comparison.is_failed
    assert comparison.metrics[0].verdict == "worse"


def test_a_budget_makes_a_gate_of_a_metric_that_is_only_shown() -> None:
    base, head = (make_report(make_metric("reads", "count", value)) for value in (1.0, 3.0))
    assert not compare_reports(base, head, forced=False).is_failed
    assert compare_reports(base, head, forced=False, budgets={"reads": 0.5}).is_failed


def test_a_run_against_itself_is_neither_better_nor_worse() -> None:
    audit = failed_audit("blocking_scalar_read", make_finding("loss.item()"))
    report = make_report(step_metric(*[10.0] * 60), PEAK, audits=(audit,))
    comparison = compare_reports(report, report, forced=False)
    assert {metric.verdict for metric in comparison.metrics} == {"unclear", "same"}
    assert [finding.change for finding in comparison.findings] == ["kept"]


def test_refuses_another_machine_by_what_differs_unless_forced() -> None:
    with pytest.raises(NotComparable, match=r"differ in devices: NVIDIA H200 in base, NVIDIA A100 in head: .*--force"):
        compare_reports(make_report(), make_report(devices=("NVIDIA A100",)), forced=False)
    comparison = compare_reports(make_report(), make_report(devices=("NVIDIA A100",)), forced=True)
    assert comparison.differences == ("devices: NVIDIA H200 in base, NVIDIA A100 in head",)


def test_refuses_runs_without_steps_even_when_forced_and_a_head_that_crashed_fails_the_gate() -> None:
    with pytest.raises(NotComparable, match=r"head \(20260101T120000Z-train-abc123\) holds no finished step"):
        compare_reports(make_report(), make_report(num_steps=0), forced=True)
    crashed = make_report(num_steps=0, ended="raised")
    with pytest.raises(NotComparable, match="neither base nor head holds a finished step"):
        compare_reports(crashed, crashed, forced=True)
    comparison = compare_reports(make_report(PEAK), make_report(num_steps=0, ended="raised"), forced=False)
    assert comparison.is_failed
