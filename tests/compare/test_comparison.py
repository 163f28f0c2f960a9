"""Whole comparisons: what must be equal, which findings are one, and what is refused."""

from typing import Any

import pytest

from efprof.compare.comparison import compare_findings, compare_reports, find_differences
from efprof.model import AuditResult, NotComparable
from tests.compare.reports import RUN, failed_audit, make_finding, make_metric, make_report, step_metric

PEAK = make_metric("peak_allocated_bytes", "bytes", 100e6, budget=0.005)


def test_a_budget_makes_a_gate_of_a_metric_that_is_only_shown() -> None:
    base, head = (make_report(make_metric("reads", "count", value)) for value in (1.0, 3.0))
    assert not compare_reports([base], [head], forced=False).is_failed
    assert compare_reports([base], [head], forced=False, budgets={"reads": 0.5}).is_failed


def test_a_budget_for_what_turns_alone_measure_is_unclear_without_them() -> None:
    report = make_report(step_metric(*[10.0] * 60))
    comparison = compare_reports([report], [report], forced=False, budgets={"step_ms_mean": 0.05, "step_ms": 0.1})
    rows = {row.name: row for row in comparison.metrics}
    assert [(rows[name].verdict, rows[name].budget) for name in ("step_ms", "step_ms_mean")] == [
        ("unclear", 0.1),
        ("unclear", 0.05),
    ]
    assert rows["step_ms"].base_median == 10.0
    assert "without --no-time" in rows["step_ms_mean"].reason


def test_a_run_against_itself_is_neither_better_nor_worse() -> None:
    audit = failed_audit("blocking_scalar_read", make_finding("loss.item()"))
    report = make_report(step_metric(*[10.0] * 60), PEAK, audits=(audit,))
    comparison = compare_reports([report], [report], forced=False)
    assert {metric.verdict for metric in comparison.metrics} == {"unclear", "same"}
    assert [finding.change for finding in comparison.findings] == ["kept"]


def test_refuses_runs_without_steps_even_when_forced_and_a_head_that_crashed_fails_the_gate() -> None:
    with pytest.raises(NotComparable, match=r"head \(20260301T101500-train-a1b2c3\) holds no finished step"):
        compare_reports([make_report()], [make_report(num_steps=0)], forced=True)
    crashed = make_report(num_steps=0, ended="raised")
    with pytest.raises(NotComparable, match=r"base \(.*\) holds no finished step"):
        compare_reports([crashed], [crashed], forced=True)
    comparison = compare_reports([make_report(PEAK)], [make_report(num_steps=0, ended="raised")], forced=False)
    assert comparison.is_failed


def replaced(name: str, value: str) -> tuple[tuple[str, str], ...]:
    """RUN's environment with one entry set to another value."""
    return tuple({**dict(RUN.environment), name: value}.items())


def test_what_a_branch_or_checkout_or_its_own_code_or_an_early_end_changes_may_differ() -> None:
    head = make_report(branch="feature", commit="abcd", is_dirty=True, name="other", started="2027-01-01")
    assert find_differences(make_report(), head) == ()
    head = make_report(environment=replaced("matmul precision", "high"))
    assert find_differences(make_report(), head) == ()
    base = make_report(command=("/usr/bin/python", "/home/user/project/train.py"))
    head = make_report(
        command=("/home/user/.venv/bin/python", "/tmp/feature/train.py"),
        environment=replaced("working folder", "/tmp/feature"),
    )
    assert find_differences(base, head) == ()
    head = make_report(num_steps=0, num_ranks=0, devices=(), environment=(), memory_source="", ended="raised")
    assert find_differences(make_report(), head) == ()


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"devices": ("NVIDIA A100",)}, "devices: NVIDIA H200 in base, NVIDIA A100 in head"),
        ({"num_ranks": 4}, "ranks: 1 in base, 4 in head"),
        ({"environment": replaced("torch", "2.6.0")}, "torch: 2.13.0 in base, 2.6.0 in head"),
        ({"environment": replaced("OMP_NUM_THREADS", "1")}, "OMP_NUM_THREADS: none in base, 1 in head"),
        ({"configuration": (("batch_size", "32"),)}, "configuration batch_size: 64 in base, 32 in head"),
        (
            {"command": ("python", "train.py", "--epochs", "2")},
            "command: python train.py --epochs 1 in base, python train.py --epochs 2 in head",
        ),
        ({"memory_source": "the C allocator"}, "memory read from: the CUDA allocator in base, the C allocator in head"),
    ],
)
def test_names_what_differs(fields: dict[str, Any], difference: str) -> None:
    assert find_differences(make_report(), make_report(**fields)) == (difference,)


def test_what_is_asked_for_may_differ_and_is_named_and_all_else_is_refused() -> None:
    head = make_report(PEAK, environment=replaced("torch", "2.6.0"))
    comparison = compare_reports([make_report(PEAK)], [head], forced=False, across=("torch",))
    assert comparison.differences == ("torch: 2.13.0 in base, 2.6.0 in head",)
    other = make_report(PEAK, environment=(*replaced("torch", "2.6.0"), ("OMP_NUM_THREADS", "1")))
    with pytest.raises(NotComparable, match="differ in OMP_NUM_THREADS: none in base, 1 in head: record"):
        compare_reports([make_report(PEAK)], [other], forced=False, across=("torch",))
    assert compare_reports([make_report(PEAK)], [other], forced=False, across=("torch", "env")).differences


READ = make_finding("print(loss.item())")
STALL = make_finding("for batch in loader:")


def passed(audit_id: str) -> AuditResult:
    """An audit that found nothing."""
    return AuditResult(audit_id=audit_id, status="passed", reason="100 steps")


def test_a_finding_whose_line_moved_is_kept() -> None:
    base = make_report(audits=(failed_audit("blocking_scalar_read", READ),))
    moved = make_finding("print(loss.item())", line=99)
    head = make_report(audits=(failed_audit("blocking_scalar_read", moved),))
    (change,) = compare_findings([base], [head])
    assert (change.change, change.location) == ("kept", "train.py:99")
    assert change.key == "blocking_scalar_read:train.py::train::print(loss.item())"


def test_findings_are_added_and_gone_by_audit_and_the_most_severe_come_first() -> None:
    base = make_report(audits=(failed_audit("blocking_scalar_read", READ), passed("input_stall")))
    head = make_report(audits=(passed("blocking_scalar_read"), failed_audit("input_stall", STALL)))
    assert [(change.change, change.audit_id) for change in compare_findings([base], [head])] == [
        ("added", "input_stall"),
        ("gone", "blocking_scalar_read"),
    ]
    low, high = make_finding("a()", severity="low"), make_finding("b()", severity="high")
    audit = failed_audit("blocking_scalar_read", low, high)
    found = compare_findings([make_report(audits=(audit,))], [make_report(audits=(audit,))])
    assert [change.key.rpartition(":")[2] for change in found] == ["b()", "a()"]


def test_a_finding_is_neither_gone_nor_added_where_its_audit_could_not_look() -> None:
    base = make_report(audits=(failed_audit("blocking_scalar_read", READ),))
    blind = AuditResult(audit_id="blocking_scalar_read", status="not_applicable", reason="steps.jsonl is missing.")
    (change,) = compare_findings([base], [make_report(audits=(blind,))])
    assert change.change == "unchecked"
    assert change.message == f"{READ.message} Not looked for in head: steps.jsonl is missing."
    (change,) = compare_findings([make_report()], [make_report(audits=(failed_audit("input_stall", STALL),))])
    assert change.change == "unchecked"
    assert change.message.endswith("Not looked for in base: its report has no such check.")


def test_a_finding_of_some_runs_of_a_side_is_neither_added_nor_gone() -> None:
    healthy = make_report(audits=(AuditResult(audit_id="input_stall", status="passed", reason="100 steps"),))
    sick = make_report(audits=(failed_audit("input_stall", STALL),))
    assert [one.change for one in compare_findings([healthy, healthy], [sick, sick])] == ["added"]
    (change,) = compare_findings([healthy, healthy], [healthy, sick])
    assert change.change == "unchecked"
    assert change.message.endswith("Found in 1 of 2 runs of the other side.")
    assert [one.change for one in compare_findings([sick, healthy], [sick, sick])] == ["kept"]
