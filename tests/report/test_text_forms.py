"""The plain text summary and the Markdown form."""

import dataclasses
import re

from efprof.model import AuditResult
from efprof.report.page.html import render_html
from efprof.report.text_forms import render_markdown, render_text
from tests.report.report_sample import HOSTILE, make_report, time_finding


def test_at_most_twenty_lines_however_much_was_found() -> None:
    findings = tuple(dataclasses.replace(time_finding(), headline=f"fault {n}\nsecond line") for n in range(30))
    audit = AuditResult(audit_id="reads", status="failed", reason="", findings=findings)
    text = render_text(make_report(audits=(audit,), warnings=(HOSTILE,) * 9))
    assert len(text.splitlines()) == 20
    assert "and 26 more in the page" in text


def test_text_has_ranked_findings_with_place_and_gain_and_no_escape_codes() -> None:
    lines = render_text(make_report()).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  1  HIGH"))
    assert "Losses are kept with their graphs" in lines[first]
    assert (
        "train.py:88   saves about 3.75 GiB (3.52 GiB to 3.81 GiB) of peak memory, 65 % of the recorded peak, "
        "estimated by replay" in lines[first + 1]
    )
    assert "The step waits for a scalar" in lines[first + 2]
    assert "train.py:102   saves about 11.4 ms" in lines[first + 3]
    assert "\x1b" not in "".join(lines)


def test_what_the_time_of_the_run_went_to_is_one_sentence_without_what_is_next_to_nothing() -> None:
    sentence = "Of the run's 8.00 s: usual steps 78 %, long steps 22 %."
    assert sentence in render_text(make_report())
    assert sentence in render_markdown(make_report())
    report = make_report()
    untimed = dataclasses.replace(report, measurements=dataclasses.replace(report.measurements, run_time=()))
    assert "Of the run" not in render_text(untimed)


def test_no_markup_from_outside_survives() -> None:
    text = render_markdown(make_report())
    outside_code = re.sub(r"(`+).*?\1", "", text, flags=re.DOTALL)
    assert "<script>" in text
    assert "<script>" not in outside_code
    assert "\x1b" not in text


def test_the_cause_follows_the_message_and_what_stands_between_backticks_in_it_is_code() -> None:
    assert "last about 1.4 minutes at this rate. `history` keeps each loss, and" in render_markdown(make_report())
    assert re.search(r"at this rate\. <code[^>]*>history</code> keeps each loss, and", render_html(make_report()))


def test_all_forms_say_what_recording_took() -> None:
    said = "Recording took 1.91 s of 1.6 min (allowed: 3.00 s + 1.0 %): "
    assert said in render_markdown(make_report())
    assert said in render_html(make_report())


def test_markdown_has_ranked_findings_with_their_changes_as_a_diff() -> None:
    text = render_markdown(make_report())
    places = [
        text.index(f"## {rank}. {title}") for rank, title in ((1, "High: Losses"), (2, "High: The step"), (3, "Medium"))
    ]
    assert places == sorted(places)
    assert "```diff\n-        history.append(loss)\n+        history.append(loss.item())\n```" in text
    assert "Median step 36.0 ms, peak memory " in text
    assert " GiB. Memory was read from the CUDA allocator" in text
