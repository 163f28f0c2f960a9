"""A fix is proved by runs with it and without: the fault is gone, nothing new came, and what was promised is won."""

from dataclasses import replace
from typing import Any

import pytest

from efprof.compare.comparison import compare_reports
from efprof.compare.proving import promise, prove
from efprof.compare.times import SideTimes, TurnTimes
from efprof.model import AuditResult, CodeEdit, Fix, Gain, Proof, Report
from efprof.report.proof_form import proof_sentence
from tests.compare.reports import failed_audit, make_finding, make_metric, make_report, step_metric, with_losses

AUDIT = "needless_retain_graph"
EDIT = CodeEdit(file="train.py", line=10, old="loss.backward(retain_graph=True)", new="loss.backward()")
MEMORY = replace(
    make_finding("loss.backward(retain_graph=True)", line=10),
    fix=Fix.by(EDIT, "safe", "Drop it"),
    gain=Gain(explanation="", peak_bytes=50_000_000),
)
TIME = replace(MEMORY, gain=Gain.of_step("", 2.0))
PASSED = AuditResult(audit_id=AUDIT, status="passed", reason="30 steps")


def run(
    *audits: AuditResult, peak: float = 200e6, step_ms: float = 10.0, losses: tuple[float, ...] = (2.0, 1.0)
) -> Report:
    metrics = step_metric(*[step_ms] * 30), make_metric("peak_allocated_bytes", "bytes", peak)
    return with_losses(make_report(*metrics, audits=audits), losses)


SICK, MENDED = run(failed_audit(AUDIT, MEMORY)), run(PASSED, peak=150e6)


def proof_of(
    *heads: Report,
    finding: Any = MEMORY,
    bases: tuple[Report, ...] = (SICK, SICK),
    head: str = "",
    times: SideTimes | None = None,
) -> Proof:
    comparison = compare_reports(bases, heads, forced=True, times=times)
    proof = Proof(key="", audit_id=AUDIT, headline="", verdict="unclear", head=head)
    return prove(AUDIT, finding, proof, bases, heads, comparison)


def test_a_saving_as_promised_without_the_fault_is_proved() -> None:
    proof = proof_of(MENDED, MENDED)
    assert (proof.verdict, proof.unit, proof.predicted, proof.measured) == ("proved", "bytes", 50e6, 50e6)
    assert proof_sentence(proof) == "proved: saves 47.7 MiB, 47.7 MiB predicted"


OTHER = failed_audit("retained_graph", make_finding("loss.backward()", line=10))
NOT_LOOKED = AuditResult(audit_id=AUDIT, status="not_applicable", reason="no step")


@pytest.mark.parametrize(
    ("heads", "verdict", "reason"),
    [
        ([MENDED, SICK], "not proved", "the fault is still there"),
        ([run(PASSED), run(PASSED)], "not proved", "the peak allocated bytes is same"),
        ([run(PASSED, OTHER, peak=150e6), MENDED], "not proved", "retained_graph is found at train.py:10"),
        ([run(NOT_LOOKED, peak=150e6), MENDED], "unclear", "with the fix its check cannot look: no step"),
    ],
)
def test_what_fails_and_what_cannot_be_told_is_named(heads: list[Report], verdict: str, reason: str) -> None:
    proof = proof_of(*heads)
    assert (proof.verdict, reason in proof.reasons) == (verdict, True)
    assert proof_sentence(proof).startswith(f"{verdict}: ")


def test_a_fault_that_does_not_come_again_is_unclear() -> None:
    proof = proof_of(MENDED, MENDED, bases=(SICK, run(PASSED)))
    assert (proof.verdict, proof.reasons[0]) == ("unclear", "not every run without the fix shows the fault")


def test_of_a_fix_of_a_person_the_same_fault_elsewhere_is_unclear_and_another_one_no_matter() -> None:
    elsewhere = failed_audit(AUDIT, make_finding("other.backward(retain_graph=True)", line=90))
    assert proof_of(run(PASSED, OTHER, peak=150e6), MENDED, head=".").verdict == "proved"
    proof = proof_of(run(elsewhere, peak=150e6), MENDED, head=".")
    assert (proof.verdict, proof.reasons) == ("unclear", (f"{AUDIT} is found at train.py:90 instead",))
    assert proof_sentence(proof).startswith("unclear by '.': saves 47.7 MiB")


def test_one_of_two_equal_lines_that_is_mended_is_gone() -> None:
    second = replace(MEMORY, blame=replace(MEMORY.blame, line=20, ordinal=1))
    both = run(failed_audit(AUDIT, MEMORY, second))
    assert proof_of(run(failed_audit(AUDIT, MEMORY), peak=150e6), MENDED, bases=(both, both)).verdict == "proved"


@pytest.mark.parametrize("fields", [{"ended": "raised"}, {"num_steps": 3, "ended": "out_of_memory"}])
def test_what_makes_the_training_fail_is_no_fix(fields: dict[str, Any]) -> None:
    nothing = replace(MEMORY, gain=Gain.none(""))
    crashed = make_report(step_metric(*[10.0] * 30), audits=(PASSED,), **fields)
    proof = proof_of(crashed, crashed, finding=nothing)
    assert (proof.verdict, proof.reasons) == ("not proved", ("runs that failed: more",))


def test_a_run_that_no_longer_runs_out_of_memory_needs_no_check_of_that() -> None:
    ended, well = (
        make_report(step_metric(*[10.0] * 30), audits=audits, ended=how)
        for how, audits in (("out_of_memory", (failed_audit(AUDIT, MEMORY),)), ("finished", (NOT_LOOKED,)))
    )
    proof = proof_of(well, well, bases=(ended, ended), finding=replace(MEMORY, gain=Gain.none("")))
    assert proof.verdict == "proved"


def test_what_a_later_edit_of_a_file_has_written_is_found_below_an_earlier_one() -> None:
    edits = (replace(EDIT, line=2, new="a\nb\nc"), EDIT)
    fixed = replace(MEMORY, fix=replace(MEMORY.fix, changes=edits))
    new = failed_audit("retained_graph", make_finding("loss.backward()", line=12))
    assert proof_of(run(PASSED, new, peak=150e6), MENDED, finding=fixed).verdict == "not proved"
    assert proof_of(run(PASSED, OTHER, peak=150e6), MENDED, finding=fixed).verdict == "proved"


@pytest.mark.parametrize(("head_s", "verdict"), [(0.008, "proved"), (0.0099, "not proved"), (None, "unclear")])
def test_promised_time_is_proved_by_turns(head_s: float | None, verdict: str) -> None:
    pairs = tuple((0.01 + noise, (head_s or 1) + noise) for noise in (0.0, 1e-5) * 8)
    turns = [TurnTimes(pairs=pairs, is_base_first=first) for first in (True, False)]
    times = SideTimes(pairs=(*turns, *turns)) if head_s else SideTimes(pairs=(), why="It ended.")
    proof = proof_of(MENDED, MENDED, finding=TIME, times=times)
    assert (proof.verdict, proof.unit, proof.predicted) == (verdict, "ms", 2.0)
    if verdict == "proved":
        assert proof.measured == pytest.approx(2.0, rel=0.01)
        assert proof.interval is not None
        assert proof.interval == pytest.approx((2.0, 2.0), rel=0.01)


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [((2.0, 1.0), (2.0, 1.0), "proved"), ((2.0, 1.0), (2.0, 1.1), "not proved"), ((), (), "unclear")],
)
def test_a_safe_fix_has_losses_equal_to_the_bit(base: tuple[float, ...], head: tuple[float, ...], verdict: str) -> None:
    sick, fixed = run(failed_audit(AUDIT, MEMORY), losses=base), run(PASSED, peak=150e6, losses=head)
    assert proof_of(fixed, fixed, bases=(sick, sick)).verdict == verdict
    assert proof_of(fixed, fixed, bases=(sick, sick), head=".").verdict == "proved"


def test_less_than_a_hundredth_of_the_step_is_no_promise() -> None:
    assert promise(TIME, 190.0) is not None
    assert promise(TIME, 210.0) is None
    assert promise(replace(TIME, gain=Gain.none("it cannot be told")), 190.0) is None
    assert proof_of(MENDED, MENDED, finding=replace(TIME, gain=Gain.none(""))).verdict == "proved"
