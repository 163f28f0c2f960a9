"""The answer in one screen: short whatever was found, whole edits only, the same in text and JSON."""

import dataclasses
import json
from typing import Any

import pytest

from efprof.model import AuditResult, CodeEdit, EnvironmentVariable, Finding, Fix, Report
from efprof.report.brief import MAX_BYTES, render_brief_json, render_brief_text
from tests.report.report_sample import make_clean_report, make_report, memory_finding, time_finding

SENTENCE = "Each step waits 7.62 ms for its data because the batches are made in the training process, and so on. " * 4


def report_of(*findings: Finding, others: tuple[AuditResult, ...] = ()) -> Report:
    failed = AuditResult(audit_id="some_audit", status="failed", reason="", findings=findings)
    return make_report(audits=(failed, *others))


def finding(number: int, *, old: str = "    a\n", new: str = "    b\n") -> Finding:
    """The higher the number, the less it saves, so that the numbers are the ranks."""
    edit = CodeEdit(file=f"file{number}.py", line=number, old=old, new=new)
    fix = Fix(summary=f"Cure {number}.", applicability="safe", changes=(edit,))
    whole = time_finding()
    gain = dataclasses.replace(whole.gain, step_ms=30.0 - number / 2, step_ms_interval=None)
    blame = dataclasses.replace(whole.blame, file=f"file{number}.py", line=number)
    return dataclasses.replace(whole, message=f"Fault {number}.", blame=blame, fix=fix, gain=gain)


def form_of(report: Report) -> Any:
    return json.loads(render_brief_json(report))


@pytest.mark.parametrize(
    ("lines", "told"), [(1, SENTENCE), (25, SENTENCE), (90, "")], ids=["an edit", "a long edit", "many short lines"]
)
def test_forty_findings_are_four_kilobytes_in_both_forms_and_those_left_out_are_counted(lines: int, told: str) -> None:
    edit = {"old": "".join(f"{place % 10}\n" for place in range(lines)), "new": "x\n" * lines}
    found = (dataclasses.replace(finding(number, **edit), message=f"Fault {number}. {told}") for number in range(1, 41))
    report = report_of(*found)
    text, form = render_brief_text(report), form_of(report)
    assert len(text.encode()) <= MAX_BYTES <= 4000
    assert len(render_brief_json(report).encode()) <= MAX_BYTES + 1
    shown = len(form["findings"])
    assert [one["line"] for one in form["findings"]] == [f"file{rank}.py:{rank}" for rank in range(1, shown + 1)]
    assert form["more_findings"] == 40 - shown > 0
    assert f"and {40 - shown} more: `efprof report {report.run.run_id}`" in text


def test_json_has_what_an_agent_needs() -> None:
    form = form_of(make_report())
    assert set(form) == {"run", "verdict", "why", "next", "findings", "not_looked_at", "commands"}
    assert form["run"] == "20260301T101500-train-a1b2c3"
    assert form["verdict"].startswith("Memory grows 61.0 MiB per step (train.py:88). ")
    assert form["why"] == memory_finding().why
    assert form["next"] == "Keep the number instead of the tensor."
    assert form["commands"][1] == "efprof compare 20260301T101500-train-a1b2c3 latest"
    assert [one["id"] for one in form["findings"]] == ["memory_growth", "blocking_scalar_read", "nonfinite_loss"]
    first = form["findings"][0]
    assert (first["severity"], first["line"]) == ("high", "train.py:88")
    assert first["sentence"] == memory_finding().message
    assert first["fix"] == "Keep the number instead of the tensor."
    assert first["gain"].startswith("saves about 3.75 GiB")
    assert first["diff"] == "@@ train.py:88 @@\n-        history.append(loss)\n+        history.append(loss.item())"


def test_the_edits_of_the_first_three_are_shown() -> None:
    report = report_of(*(finding(rank) for rank in range(1, 6)))
    form, text = form_of(report), render_brief_text(report)
    assert ["diff" in one for one in form["findings"]] == [True, True, True, False, False]
    for rank in range(1, 6):
        assert (f"   @@ file{rank}.py:{rank} @@\n   -    a\n   +    b\n" in text) == (rank <= 3)


def test_a_setting_is_an_edit_too_and_what_was_not_there_before_has_no_old_side() -> None:
    variable = EnvironmentVariable(name="OMP_NUM_THREADS", old=None, new="8")
    fix = Fix(summary="Set it.", applicability="review", changes=(variable,))
    (one,) = form_of(report_of(dataclasses.replace(time_finding(), fix=fix)))["findings"]
    assert one["diff"] == "@@ environment variable OMP_NUM_THREADS @@\n+OMP_NUM_THREADS=8"


def test_half_an_edit_is_never_shown() -> None:
    short = CodeEdit(file="train.py", line=1, old="a\n", new="b\n")
    long = CodeEdit(file="train.py", line=9, old="a\n", new="".join(f"line {place}\n" for place in range(80)))
    for changes in ((long,), (short, long), (long, short)):
        fix = Fix(summary="Edit it.", applicability="review", changes=changes)
        report = report_of(dataclasses.replace(time_finding(), fix=fix))
        assert "diff" not in form_of(report)["findings"][0]
        assert "@@" not in render_brief_text(report)


def test_text_tells_the_lead_once_and_each_other_finding_with_its_sentence_and_fix() -> None:
    same = Fix.by_hand("Cure both.")
    first, second = (
        dataclasses.replace(finding(rank), message=f"Fault {rank} costs 1 ms.", fix=same) for rank in (1, 2)
    )
    lines = render_brief_text(report_of(first, second)).splitlines()
    assert lines[0] == "Verdict  Fault 1 costs 1 ms (file1.py:1)."
    assert lines[2].startswith("Next     Cure both.")
    assert "1. high some_audit at file1.py:1" in lines
    assert not any("Fault 1" in line for line in lines[1:])
    place = lines.index("2. high some_audit at file2.py:2")
    assert lines[place + 1 : place + 3] == ["   Fault 2 costs 1 ms.", "   Fix: Cure both."]
    assert lines[place + 3].startswith("   Gain: saves ")
    assert lines[-1] == "$ efprof compare 20260301T101500-train-a1b2c3 latest"


def test_a_long_fix_of_the_lead_is_told_once() -> None:
    long = Fix.by_hand("Collect the values on the device and read them at once. " * 6)
    text = render_brief_text(report_of(dataclasses.replace(finding(1), fix=long)))
    assert text.count("Collect the values") == 6
    assert text.count("Fault 1") == 1


def test_what_was_not_looked_at_is_one_line() -> None:
    def could_not(audit_id: str, reason: str) -> AuditResult:
        return AuditResult(audit_id=audit_id, status="not_applicable", reason=reason)

    others = (
        *(could_not(f"of_a_device_{number}", "Needs a CUDA device.") for number in range(9)),
        could_not("slow_rank", "Needs several ranks."),
        could_not("step_slowdown", "12 steps are too few."),
        AuditResult(audit_id="broken", status="errored", reason="KeyError: 'x'"),
    )
    report = report_of(time_finding(), others=others)
    said = "9 need a CUDA device; others need several ranks"
    said += "; too little, or nothing to look at, for step_slowdown, broken"
    assert form_of(report)["not_looked_at"] == said
    assert [line for line in render_brief_text(report).splitlines() if line.startswith("Not looked at")] == [
        f"Not looked at: {said}"
    ]


def test_a_clean_run_is_said_to_be_one() -> None:
    text, form = render_brief_text(make_clean_report()), form_of(make_clean_report())
    assert text.startswith("Verdict  No fault was found.\nWhy      3 checks passed over 64 steps")
    assert (form["findings"], form["not_looked_at"]) == ([], "")
    assert "Not looked at" not in text


def test_hostile_text_cannot_steer_a_terminal_and_the_json_parses() -> None:
    assert "\x1b" not in render_brief_text(make_report())
    assert form_of(make_report())["findings"]
