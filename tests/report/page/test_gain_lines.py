"""What the page says of a saving, beside the words that every rendering shares."""

import dataclasses
from typing import Any

from efprof.model import AuditResult, Gain
from efprof.report.page.html import gain_lines
from efprof.report.verdict import rank_findings
from efprof.units import MIB
from tests.report.report_sample import make_report, memory_finding, read_until


def line(**fields: Any) -> tuple[str, str]:
    """The amount and the details of the one line of a card whose fix lowers the peak by 300 MiB."""
    gain = Gain(basis="measured bound", explanation="", peak_bytes=300 * MIB, **fields)
    audit = AuditResult(
        audit_id="retained_graph",
        status="failed",
        reason="",
        findings=(dataclasses.replace(memory_finding(), gain=gain),),
    )
    report = read_until(make_report(audits=(audit,)), 59)
    (ranked,) = rank_findings(report)
    (shown,) = gain_lines(ranked.finding, report)
    return shown


def test_what_holds_up_to_a_step_is_told_as_the_least_with_the_estimate_beside_it() -> None:
    amount, details = line(peak_bytes_interval=(250.0 * MIB, 390.0 * MIB), until_step=59)
    assert amount == "saves at least 250 MiB of peak memory"
    assert details.startswith("300 MiB (250 MiB to 390 MiB) up to step 59, ")


def test_what_holds_for_the_whole_run_is_told_as_it_is() -> None:
    amount, details = line(peak_bytes_interval=(250.0 * MIB, 390.0 * MIB))
    assert amount == "saves about 300 MiB of peak memory"
    assert details.startswith("250 MiB to 390 MiB, ")


def test_an_upper_limit_without_an_interval_stays_one() -> None:
    assert line()[0] == "saves up to 300 MiB of peak memory"
