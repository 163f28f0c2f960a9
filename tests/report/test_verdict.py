"""The three lines, the order of findings, how a run ended, the counts and the header."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from efprof.commands.report import analyse
from efprof.model import (
    AuditResult,
    Finding,
    Gain,
    Measurements,
    RecorderPart,
    Report,
    RunError,
    RunIdentity,
    SourceLine,
    Timeline,
)
from efprof.report.verdict import (
    VerdictLines,
    counts_phrase,
    describe_verdict,
    header_items,
    needs_phrase,
    overhead_phrase,
    rank_findings,
)
from tests.report.report_sample import (
    make_clean_report,
    make_report,
    make_run,
    memory_finding,
    read_until,
    time_finding,
)

RUNS = Path(__file__).parents[1] / "runs"
EMPTY = Measurements(
    metrics=(), timeline=Timeline(steps=(), memory=()), stage_deltas=(), overhead=None, memory_source="the resident set"
)


PLACED = "Memory grows 61.0 MiB per step (train.py:88). The 141 GiB of the device last about 1.4 minutes at this rate."
"""The message of `memory_finding`, with its line at the end of the first clause."""


def ended(ending: str, **changes: Any) -> Report:
    return make_report(run=make_run(ended=ending, exit_code=1), **changes)


def test_verdict_is_the_message_of_the_first_finding_with_its_line_and_commands_record_again_and_compare() -> None:
    lines = describe_verdict(make_report())
    assert lines.verdict == PLACED
    assert lines.why == memory_finding().why
    assert lines.next == memory_finding().fix.summary
    assert lines.blame == memory_finding().blame
    record, compare = describe_verdict(make_report()).commands
    assert record.startswith("efprof record -- python train.py --epochs 1 --note ")
    assert compare == "efprof compare 20260301T101500-train-a1b2c3 latest"


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("raised", "stopped with an error after 64 steps (exit code 1)."),
        ("out_of_memory", "ran out of memory after 64 steps"),
        ("killed", "was killed from outside after 64 steps"),
        ("interrupted", "was interrupted after 64 steps"),
    ],
)
def test_a_bad_ending_opens_the_verdict(ending: str, words: str) -> None:
    lines = describe_verdict(ended(ending))
    assert words in lines.verdict
    assert lines.verdict.endswith(PLACED)
    assert lines.tone == "high"


def test_no_cause_is_looked_for_in_an_interrupted_run_nor_a_finding_about_time_for_want_of_memory() -> None:
    report = dataclasses.replace(make_clean_report(), run=make_run(ended="interrupted", exit_code=130))
    assert "passed so far" in describe_verdict(report).why
    audit = AuditResult(audit_id="reads", status="failed", reason="", findings=(time_finding(),))
    lines = describe_verdict(ended("out_of_memory", audits=(audit,)))
    assert lines.blame is None
    assert "makes the CPU wait" not in lines.verdict
    assert lines.next.startswith("Make the batch smaller")


def test_a_clean_run_says_what_was_looked_at_and_a_run_that_none_could_look_at_is_not_clean() -> None:
    lines = describe_verdict(make_clean_report())
    assert lines.verdict == "No fault was found."
    assert lines.why.startswith("3 checks passed over 64 steps: median step 36.0 ms, peak memory ")
    assert lines.tone == "none"
    audit = AuditResult(audit_id="reads", status="not_applicable", reason="trace-<n>.json.gz is missing.")
    assert describe_verdict(make_report(audits=(audit,))).verdict == "Too little was recorded: 0 of 1 check could look."
    report = make_report(run=make_run(ended="raised", exit_code=2, num_steps=0), audits=(), measurements=EMPTY)
    lines = describe_verdict(report)
    assert "The run stopped with an error before it finished a step (exit code 2)." in lines.verdict
    assert lines.why == "No training step was recorded."


@pytest.mark.parametrize("name", ["input_stall_worker-healthy", "skipped_updates-healthy"])
def test_a_recorded_healthy_run_is_told_in_short_sentences(name: str) -> None:
    lines = describe_verdict(analyse(RUNS / name))
    assert lines.verdict == "No fault was found."
    assert "; " in lines.why, "its two largest parts"


def test_the_peak_of_a_run_whose_memory_was_read_early_is_told_up_to_that_step() -> None:
    report = make_clean_report()
    assert "up to step" not in describe_verdict(report).why
    assert describe_verdict(read_until(report, 40)).why.endswith(" up to step 40.")


def test_what_recording_took_is_told_beside_the_time_of_the_run_and_what_it_might() -> None:
    said = overhead_phrase(make_report())
    assert said == "Recording took 1.91 s of 1.6 min (allowed: 3.00 s + 1.0 %): 30 of 64 steps in full, 2 windows."
    measured = dataclasses.replace(make_report().measurements, overhead=None)
    assert overhead_phrase(make_report(measurements=measured)) == "The cost of recording was not measured."


def test_counts_name_every_status_and_the_header_groups_equal_devices() -> None:
    assert (
        counts_phrase(make_report())
        == "3 findings (memory 1, time 1, numbers 1); 2 checks passed, 1 not applicable, 1 broke"
    )
    run = make_run(devices=("H200", "H200"), num_ranks=2)
    assert header_items(run) == ("train.py", "main@3f2c1ab+dirty", "2 x H200", "2 ranks", "64 steps", "finished")


def ranked_headlines(*findings: Finding) -> list[str]:
    audit = AuditResult(audit_id="some_audit", status="failed", reason="", findings=findings)
    return [item.finding.headline for item in rank_findings(make_report(audits=(audit,)))]


def test_severity_comes_before_gain_and_gains_of_different_kinds_are_compared_as_shares() -> None:
    small = dataclasses.replace(time_finding(), severity="high", gain=Gain(basis="model", explanation=""))
    large = dataclasses.replace(memory_finding(), severity="medium")
    assert ranked_headlines(large, small) == [small.headline, large.headline]
    assert ranked_headlines(time_finding(), memory_finding()) == [memory_finding().headline, time_finding().headline]
    of_step = dataclasses.replace(time_finding(), gain=Gain(basis="model", explanation="", step_ms=1e6))
    of_late = dataclasses.replace(time_finding(), gain=dataclasses.replace(of_step.gain, late_step_ms=1e9))
    assert ranked_headlines(of_step, memory_finding())[0] == of_step.headline
    assert ranked_headlines(of_late, memory_finding())[0] == memory_finding().headline, "of a late step it is little"


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


def leading(**changes: Any) -> VerdictLines:
    """The lines of a report whose one finding is so changed."""
    finding = dataclasses.replace(memory_finding(), **changes)
    audit = AuditResult(audit_id="some_audit", status="failed", reason="", findings=(finding,))
    return describe_verdict(make_report(audits=(audit,)))


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("A step takes 1.50 ms. It was less.", "A step takes 1.50 ms (train.py:88). It was less."),
        ("Memory grows by 2.5 GiB; it lasts.", "Memory grows by 2.5 GiB (train.py:88); it lasts."),
        ("All of it goes to train.py:88.", "All of it goes to train.py:88."),
        ("Without an end", "Without an end"),
    ],
    ids=["a sentence", "a clause", "told already", "no end"],
)
def test_the_line_stands_at_the_end_of_the_first_clause_and_once(message: str, verdict: str) -> None:
    assert leading(message=message).verdict == verdict


def test_a_finding_of_low_severity_leads_too_and_says_that_it_costs_little() -> None:
    lines = leading(severity="low")
    assert lines.verdict == f"Nothing costs much; the largest: {PLACED}"
    assert (lines.why, lines.blame, lines.tone) == (memory_finding().why, memory_finding().blame, "low")
    filling = leading(severity="low", may_be_filling=True)
    assert filling.verdict == f"Nothing costs much; what may still be filling: {PLACED}"


def test_what_may_be_filling_comes_last_whatever_it_would_save() -> None:
    filling = dataclasses.replace(memory_finding(), severity="low", may_be_filling=True)
    small = dataclasses.replace(time_finding(), severity="low", gain=Gain.none("nothing is claimed"))
    assert ranked_headlines(filling, small) == [small.headline, filling.headline]


def audits_that_need(*reasons: str) -> tuple[AuditResult, ...]:
    return tuple(
        AuditResult(audit_id=f"audit_{number}", status="not_applicable", reason=reason)
        for number, reason in enumerate(reasons)
    )


def test_checks_of_one_need_are_told_together_without_what_stands_in_brackets() -> None:
    could_not = audits_that_need(
        "Needs several ranks.",
        "Needs a CUDA device.",
        "Needs a CUDA device (on a GPU synchronize waits at train.py:2).",
        "steps.jsonl is missing; record a run.",
    )
    broken = AuditResult(audit_id="broken", status="errored", reason="Needs a friend.")
    report = make_report(audits=(*could_not, broken))
    assert needs_phrase(report) == "2 need a CUDA device; others need several ranks"
    assert counts_phrase(report).endswith("4 not applicable, 1 broke")
    assert needs_phrase(make_clean_report()) == ""


def test_checks_with_nothing_to_look_at_make_no_run_unclear() -> None:
    """Of the four that had something to look at, two did."""
    passed = make_clean_report().audits[:2]
    missing = audits_that_need("steps.jsonl is missing.", "trace-<n>.json.gz is missing.")
    nothing = audits_that_need(*["Needs a CUDA device."] * 9)
    lines = describe_verdict(make_report(audits=(*passed, *missing, *nothing)))
    assert lines.verdict == "No fault was found."
    lines = describe_verdict(make_report(audits=(*passed[:1], *missing, *nothing)))
    assert lines.verdict == "Too little was recorded: 1 of 3 checks could look."


LINE = SourceLine(file="train.py", line=22, function="main", text="raise ValueError(x)")
ERROR = RunError(kind="ValueError", message="no such shape", step=5, stage="forward", blame=LINE)


def clean(run: RunIdentity) -> Report:
    return dataclasses.replace(make_clean_report(), run=run)


def test_the_error_that_ended_a_run_is_its_why_and_its_line_the_blame_before_a_finding_about_time() -> None:
    lines = describe_verdict(clean(run=make_run(ended="raised", exit_code=1, error=ERROR)))
    assert lines.why == "ValueError in the forward stage of step 5: no such shape."
    assert lines.blame == LINE
    audits = tuple(audit for audit in make_report().audits if audit.audit_id == "blocking_scalar_read")
    lines = describe_verdict(make_report(audits=audits, run=make_run(ended="raised", exit_code=1, error=ERROR)))
    assert lines.blame == LINE


POSSIBLE = (
    "Read what the program itself said last. Should the ValueError at train.py:22 not come without efprof, try "
    "`efprof record --windows none`."
)
CERTAIN = "Run it without efprof: the ValueError at train.py:22 is the recorder's own."


@pytest.mark.parametrize(("part", "hint"), [("possible", POSSIBLE), ("certain", CERTAIN)])
def test_an_error_that_the_recorder_may_have_part_in_is_told_with_what_to_try(part: RecorderPart, hint: str) -> None:
    run = make_run(ended="raised", exit_code=1, error=dataclasses.replace(ERROR, recorder_part=part))
    assert describe_verdict(clean(run=run)).next == hint
    lead = describe_verdict(make_report(run=run))
    assert lead.next.endswith(f". {hint}")
    assert "efprof" not in describe_verdict(clean(run=dataclasses.replace(run, error=ERROR))).next


def test_a_run_that_goes_on_is_not_called_sound_and_one_that_ran_out_of_memory_is_to_take_less() -> None:
    lines = describe_verdict(clean(run=make_run(ended="running", exit_code=None)))
    assert lines.tone != "none"
    assert "Report again when it has ended" in lines.next
    lines = describe_verdict(clean(run=make_run(ended="out_of_memory", exit_code=1, error=ERROR)))
    assert lines.next.startswith("Make the batch smaller;")
