"""The Markdown form."""

import dataclasses
import re

from efprof.model import AuditResult
from efprof.report.text_forms import code, code_block, escape, prose, render_markdown, table
from tests.report.report_sample import make_report


def test_no_markup_from_outside_survives() -> None:
    text = render_markdown(make_report())
    outside_code = re.sub(r"(`+).*?\1", "", text, flags=re.DOTALL)
    assert "<script>" in text
    assert "<script>" not in outside_code
    assert "\x1b" not in text


def test_findings_come_in_ranked_order_with_their_changes_as_a_diff() -> None:
    text = render_markdown(make_report())
    places = [
        text.index(f"## {rank}. {title}") for rank, title in ((1, "High: Losses"), (2, "High: The step"), (3, "Medium"))
    ]
    assert places == sorted(places)
    assert "```diff\n-         history.append(loss)\n+         history.append(loss.item())\n```" in render_markdown(
        make_report()
    )
    assert "Median step 36.0 ms, peak memory " in text
    assert " GiB read from the CUDA allocator" in text


def test_code_in_a_sentence_keeps_its_spaces_and_with_backticks_stays_code() -> None:
    assert prose("because `a_b` keeps 3 * 4") == r"because `a_b` keeps 3 \* 4"
    assert code("a``b") == "``` a``b ```"
    assert code_block("py", "```").startswith("````py\n")
    assert table(("a",), [(escape("x|y\nz"),)]).splitlines()[-1] == r"| x\|y z |"


def test_code_in_what_a_check_looked_at_is_shown_as_code() -> None:
    audit = AuditResult(audit_id="retained_graph", status="passed", findings=(), reason="a bound at `x[-9:] * a|b`")
    text = render_markdown(dataclasses.replace(make_report(), audits=(audit,)))
    assert r"| `retained_graph` | passed | a bound at `x[-9:] * a\|b` |" in text
