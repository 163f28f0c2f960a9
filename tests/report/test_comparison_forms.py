"""What a comparison says."""

import dataclasses

from efprof.model import Comparison, MetricChange
from efprof.report.comparison_form import (
    comparison_verdict,
    render_comparison_markdown,
    render_comparison_text,
)
from efprof.report.page.html import render_comparison_html
from tests.report.report_sample import make_comparison, make_metric_change, make_report


def compared(*metrics: MetricChange) -> Comparison:
    return dataclasses.replace(make_comparison(), metrics=metrics)


def test_one_worse_metric_makes_head_worse() -> None:
    verdict = comparison_verdict(make_comparison())
    assert verdict.word == "worse"
    assert verdict.headline == "Head is worse than base: step time +12.4 % (+9.0 % to +15.0 %)."
    assert "Better all the same: peak memory -8.0 % (-10.0 % to -6.0 %)." in verdict.details


def test_same_needs_every_deciding_metric_and_what_never_gates_does_not_decide() -> None:
    same, unclear = make_metric_change(verdict="same"), make_metric_change(verdict="unclear")
    assert comparison_verdict(compared(same, same)).word == "same"
    assert comparison_verdict(compared(same, unclear)).word == "unclear"
    shown_only = make_metric_change(verdict="worse", budget=None)
    assert comparison_verdict(compared(make_metric_change(verdict="same"), shown_only)).word == "same"
    assert comparison_verdict(compared()).word == "unclear"


def test_what_never_gates_is_named_below_with_its_change_or_both_sides() -> None:
    reads = make_metric_change(
        name="reads", label="reads", unit="count", verdict="worse", budget=None, effect=None, interval=None
    )
    growth = make_metric_change(
        name="growth", label="memory growth", verdict="better", effect=-1.0, interval=None, budget=None
    )
    verdict = comparison_verdict(compared(make_metric_change(verdict="same"), reads, growth))
    assert verdict.headline == "Head is the same as base within what these runs can tell."
    assert "Worse without a gate: reads from 36 to 40.5." in verdict.details
    assert "Better without a gate: memory growth -100.0 %." in verdict.details
    verdict = comparison_verdict(compared(growth))
    assert verdict.headline == "Head is better than base: memory growth -100.0 %.", "nothing gates, so each decides"


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
    assert "Findings: 0 added, 1 unchecked, 0 gone, 0 kept." in comparison_verdict(comparison).details
    assert "unchecked  Something was added" in render_comparison_text(comparison)
    assert "### Findings unchecked" in render_comparison_markdown(comparison)
    assert "Unchecked: 1" in render_comparison_html(comparison, make_report())
