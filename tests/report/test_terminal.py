"""The plain text summary."""

import dataclasses

from efprof.model import AuditResult
from efprof.report.text_forms import VERDICT_WIDTH, render_text
from tests.report.report_sample import HOSTILE, certain_finding, make_clean_report, make_report, time_finding


def test_at_most_twenty_lines_however_much_was_found() -> None:
    findings = tuple(dataclasses.replace(time_finding(), headline=f"fault {n}\nsecond line") for n in range(30))
    audit = AuditResult(audit_id="reads", status="failed", reason="", findings=findings)
    text = render_text(make_report(audits=(audit,), warnings=(HOSTILE,) * 9))
    assert len(text.splitlines()) == 20
    assert "and 26 more in the page" in text


def test_findings_come_in_ranked_order_with_place_and_gain_and_long_paths_keep_their_end() -> None:
    lines = render_text(make_report()).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  1  HIGH"))
    assert "Losses are kept with their graphs" in lines[first]
    assert "train.py:88   saves about 3.75 GiB (3.52 GiB to 3.81 GiB) of peak memory, by replay" in lines[first + 1]
    assert "The step waits for a scalar" in lines[first + 2]
    assert "train.py:102   saves about 11.4 ms" in render_text(make_report())


def test_an_interval_that_reads_as_its_value_is_left_out() -> None:
    audit = AuditResult(audit_id="growing", status="failed", reason="", findings=(certain_finding(),))
    assert "saves about 33.0 MiB of peak memory" in render_text(make_report(audits=(audit,)))


def test_nothing_outside_can_send_escape_codes_to_the_terminal() -> None:
    assert "\x1b" not in render_text(make_report())


def test_a_long_verdict_is_cut_after_a_word_so_that_no_number_loses_digits() -> None:
    finding = dataclasses.replace(certain_finding(), message=f"{'so ' * 154}until ~2,000,000 steps are done")
    audit = AuditResult(audit_id="growing", status="failed", reason="", findings=(finding,))
    verdict = next(line for line in render_text(make_report(audits=(audit,))).splitlines() if "Verdict" in line)
    assert verdict.endswith(" so until...")
    assert len(verdict) <= VERDICT_WIDTH < len("Verdict  ") + len(finding.message)


def test_a_clean_run_is_short() -> None:
    text = render_text(make_clean_report())
    assert "No fault was found." in text
    assert "0 findings; 3 checks passed, 0 not applicable" in text
