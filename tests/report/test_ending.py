"""How a run ended, in words."""

import dataclasses

import pytest

from efprof.model import Report, RunError, RunIdentity, SourceLine
from efprof.report.verdict import MAX_MESSAGE, describe_verdict, ending_sentence, error_phrase
from tests.report.report_sample import make_clean_report, make_report, make_run

LINE = SourceLine(file="train.py", line=22, function="main", text="raise ValueError(x)")
ERROR = RunError(kind="ValueError", message="no such shape", step=5, stage="forward", blame=LINE)


def clean(run: RunIdentity) -> Report:
    return dataclasses.replace(make_clean_report(), run=run)


@pytest.mark.parametrize(("exit_code", "name"), [(137, "SIGKILL"), (134, "SIGABRT"), (143, "SIGTERM")])
def test_a_run_that_a_signal_ended_names_it(exit_code: int, name: str) -> None:
    assert f"was killed by {name} after" in ending_sentence(make_run(ended="killed", exit_code=exit_code))


def test_a_run_that_finished_no_step_says_so() -> None:
    sentence = ending_sentence(make_run(ended="raised", exit_code=2, num_steps=0))
    assert sentence == "The run stopped with an error of its own before it finished a step (exit code 2)."


def test_the_error_that_ended_a_run_is_its_why_and_its_line_the_blame_before_a_finding_about_time() -> None:
    lines = describe_verdict(clean(run=make_run(ended="raised", exit_code=1, error=ERROR)))
    assert lines.why == "ValueError in the forward stage of step 5: no such shape."
    assert lines.blame == LINE
    assert lines.next.startswith("Mend what the error names: ")
    audits = tuple(audit for audit in make_report().audits if audit.audit_id == "blocking_scalar_read")
    lines = describe_verdict(make_report(audits=audits, run=make_run(ended="raised", exit_code=1, error=ERROR)))
    assert lines.blame == LINE


def test_a_long_message_is_cut() -> None:
    error = RunError(kind="ValueError", message="x" * 5000, step=5, stage=None, blame=None)
    assert len(error_phrase(make_run(ended="raised", error=error))) < MAX_MESSAGE + 50


def test_a_run_that_goes_on_is_not_called_sound_and_memory_that_ran_out_points_to_its_line() -> None:
    lines = describe_verdict(clean(run=make_run(ended="running", exit_code=None)))
    assert lines.tone != "none"
    assert "Report again when it has ended" in lines.next
    lines = describe_verdict(clean(run=make_run(ended="out_of_memory", exit_code=1, error=ERROR)))
    assert lines.next.startswith("Ask for less memory at that line")
