"""What a comparison says."""

import dataclasses

from efprof.model import Comparison, MetricChange
from efprof.report.comparison_form import (
    comparison_verdict,
    render_comparison_github,
    render_comparison_markdown,
    render_comparison_text,
)
from efprof.report.page.html import render_comparison_html
from tests.report.report_sample import make_comparison, make_metric_change, make_report


def compared(*metrics: MetricChange) -> Comparison:
    """Of these metrics, and without findings."""
    return dataclasses.replace(make_comparison(), metrics=metrics, findings=())


def test_one_worse_metric_makes_head_worse() -> None:
    headline = (
        "Head is worse than base: step time +12.4 % (+9.0 % to +15.0 %). Added: Something was added (train.py:88)."
    )
    assert comparison_verdict(make_comparison()) == ("worse", headline)


def test_same_needs_every_deciding_metric_and_what_never_gates_does_not_decide() -> None:
    same, unclear = make_metric_change(verdict="same"), make_metric_change(verdict="unclear")
    assert comparison_verdict(compared(same, same))[0] == "same"
    assert comparison_verdict(compared(same, unclear))[0] == "unclear"
    shown_only = make_metric_change(verdict="worse", budget=None)
    assert comparison_verdict(compared(make_metric_change(verdict="same"), shown_only))[0] == "same"
    assert comparison_verdict(compared())[0] == "unclear"


def test_where_nothing_gates_each_metric_decides_and_is_named_with_its_change_or_both_sides() -> None:
    reads = make_metric_change(
        name="reads", label="reads", unit="count", verdict="worse", budget=None, effect=None, interval=None
    )
    growth = make_metric_change(
        name="growth", label="memory growth", verdict="better", effect=-1.0, interval=None, budget=None
    )
    assert comparison_verdict(compared(reads, growth))[1] == "Head is worse than base: reads from 36 to 40.5."
    assert comparison_verdict(compared(growth))[1] == "Head is better than base: memory growth -100.0 %."


def test_text_and_markdown_name_changed_findings_and_let_nothing_from_outside_through() -> None:
    text = render_comparison_text(make_comparison())
    assert text.startswith("WORSE: Head is worse than base")
    assert "Compared although they differ: The base ran on 1 x A100, the head on 1 x H200." in text
    assert "added  Something was added   train.py:88   memory_growth" in text
    assert "\x1b" not in text
    markdown = render_comparison_markdown(make_comparison())
    assert "<script>" not in markdown
    assert "### Findings gone" in markdown


def test_a_finding_that_the_other_run_could_not_show_is_in_every_form() -> None:
    unchecked = dataclasses.replace(make_comparison().findings[0], change="unchecked")
    comparison = dataclasses.replace(make_comparison(), findings=(unchecked,))
    assert "unchecked  Something was added" in render_comparison_text(comparison)
    assert "Findings unchecked:" in render_comparison_markdown(comparison)
    assert "Unchecked: 1" in render_comparison_html(comparison, make_report())


def test_a_comment_of_many_changes_stays_short_with_what_is_as_before_folded() -> None:
    (one,) = (finding for finding in make_comparison().findings if finding.change == "added")
    many = tuple(dataclasses.replace(one, key=f"{number}") for number in range(30))
    same = [make_metric_change(name=f"m{number}", verdict="same") for number in range(12)]
    comparison = dataclasses.replace(make_comparison(), metrics=(*make_comparison().metrics, *same), findings=many)
    shown, _, folded = render_comparison_markdown(comparison).partition("<details>")
    assert len(shown.splitlines()) <= 30
    assert "- and 22 more" in shown
    assert "m3" not in shown
    assert folded.count("\n| ") >= 12


def test_each_finding_that_was_added_is_a_warning_of_github_at_its_line() -> None:
    (one,) = (finding for finding in make_comparison().findings if finding.change == "added")
    odd = dataclasses.replace(
        one, location="a:b,c.py:7", headline="100 % worse\n::error::", message="so: it, is\r\n::stop"
    )
    comparison = dataclasses.replace(make_comparison(), findings=(odd,))
    said = render_comparison_github(comparison)
    assert said == "::warning file=a%3Ab%2Cc.py,line=7,title=100 %25 worse %3A%3Aerror%3A%3A::so: it, is ::stop\n"


def test_losses_that_differ_are_told_with_the_verdict_though_they_do_not_gate() -> None:
    losses = make_metric_change(
        name="loss", verdict="unclear", budget=None, effect=None, interval=None, reason="Losses differ from step 12 on."
    )
    comparison = dataclasses.replace(compared(make_metric_change(verdict="same"), losses), num_runs=2)
    assert comparison_verdict(comparison) == (
        "same",
        "Head is the same as base within what these runs can tell. Losses differ from step 12 on.",
    )
    assert "differ" not in comparison_verdict(dataclasses.replace(comparison, num_runs=1))[1]
