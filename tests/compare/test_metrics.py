"""Metrics are paired by name."""

import math

from efprof.compare.verdicts import compare_metrics
from tests.compare.reports import make_metric, make_report, step_metric


def test_a_metric_of_one_side_is_unclear_and_samples_that_are_not_finite_are_left_out() -> None:
    report = make_report(make_metric("peak_allocated_bytes", "bytes", 5.0, budget=0.005))
    change = compare_metrics(report, make_report())[0]
    assert (change.base_median, math.isnan(change.head_median), change.effect) == (5.0, True, None)
    assert (change.verdict, change.is_over_budget, change.reason) == ("unclear", False, "Not measured in head.")
    head = make_report(make_metric("loss", "", 1.0, math.nan, math.inf, 3.0))
    change = compare_metrics(make_report(make_metric("loss", "", math.nan)), head)[0]
    assert (change.head_median, change.reason) == (2.0, "Not measured in base.")


def test_a_statistic_other_than_the_median_is_named() -> None:
    report = make_report(step_metric(*range(1, 101)), make_metric("peak", "bytes", 1.0, 2.0))
    assert [(change.name, change.label, change.base_median) for change in compare_metrics(report, report)] == [
        ("step_ms", "step ms (20th percentile)", 20.8),
        ("step_ms_mean", "step ms (mean)", 50.5),
        ("step_ms_median", "step ms", 50.5),
        ("peak", "peak (highest)", 2.0),
        ("failed_runs", "runs that failed", 0.0),
    ]


def test_the_spread_is_the_middle_half_of_the_steps() -> None:
    report = make_report(make_metric("data_ms", "ms", 1.0, 2.0, 3.0, 4.0, 100.0))
    assert compare_metrics(report, report)[0].base_spread == 2.0


def test_a_head_that_runs_out_of_memory_fails_the_gate_and_an_interrupted_one_does_not() -> None:
    (change,) = compare_metrics(make_report(), make_report(ended="out_of_memory", num_steps=0))
    assert (change.name, change.verdict, change.is_over_budget) == ("failed_runs", "worse", True)
    (change,) = compare_metrics(make_report(), make_report(ended="interrupted"))
    assert change.verdict == "same"


def test_a_peak_of_far_fewer_steps_is_unclear_unless_it_is_higher() -> None:
    high, low = (make_metric("peak", "bytes", size * 1e6, budget=0.005) for size in (123.0, 113.0))
    shorter_head = compare_metrics(make_report(high), make_report(low, num_steps=5))[0]
    assert (shorter_head.verdict, shorter_head.is_over_budget) == ("unclear", False)
    assert "Base has 100 steps and head 5" in shorter_head.reason
    shorter_base = compare_metrics(make_report(low, num_steps=5), make_report(high))[0]
    assert (shorter_base.verdict, shorter_base.is_over_budget) == ("unclear", False)
    high, low = (make_metric("peak", "bytes", size * 1e6, budget=0.005) for size in (123.0, 113.0))
    change = compare_metrics(make_report(low), make_report(high, num_steps=5))[0]
    assert (change.verdict, change.is_over_budget) == ("worse", True)
