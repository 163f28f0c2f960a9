"""Metrics are paired by name; when a change counts, by unit; and the numbers made of a run's samples."""

import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.compare.verdicts import compare_metrics
from efprof.model import Metric, MetricChange
from efprof.units import MIB
from tests.compare.reports import make_metric, make_report, step_metric

MIRROR: Final = {"better": "worse", "worse": "better", "same": "same", "unclear": "unclear"}

units = st.sampled_from(["ms", "bytes", "bytes_per_step", "count", "percent"])
samples = st.lists(st.floats(min_value=0, max_value=1e12), min_size=1, max_size=120)


def compare(base: Metric, head: Metric) -> list[MetricChange]:
    """The rows of one metric."""
    changes = compare_metrics([make_report(base)], [make_report(head)], {})
    return [change for change in changes if change.name != "failed_runs"]


@given(units, samples, samples)
def test_swapping_the_sides_mirrors_the_verdict(unit: str, base: list[float], head: list[float]) -> None:
    sides = make_metric("metric", unit, *base, budget=0.0), make_metric("metric", unit, *head, budget=0.0)
    there, back = compare(*sides), compare(*reversed(sides))
    assert [change.verdict for change in there] == [MIRROR[change.verdict] for change in back]


@pytest.mark.parametrize(
    ("added_bytes", "verdict"), [(0, "same"), (5 * MIB - 1, "same"), (5 * MIB, "worse"), (-6 * MIB, "better")]
)
def test_peak_memory_counts_from_half_a_percent_on(added_bytes: int, verdict: str) -> None:
    base = make_metric("peak_allocated_bytes", "bytes", 900.0 * MIB, 1000.0 * MIB, budget=0.005)
    head = make_metric("peak_allocated_bytes", "bytes", 900.0 * MIB, 1000.0 * MIB + added_bytes, budget=0.005)
    (change,) = compare(base, head)
    assert change.verdict == verdict
    assert "5 to 16 %" in change.reason


def test_new_growth_and_one_more_nonfinite_step_are_worse_and_a_unit_without_a_rule_not_judged() -> None:
    base, head = (make_metric("growth", "bytes_per_step", slope, budget=0.03) for slope in (0.0, 100 * 1024.0))
    (change,) = compare(base, head)
    assert (change.verdict, change.is_over_budget, change.effect) == ("worse", True, None)
    base, head = (make_metric("nonfinite_steps", "count", number, budget=0.0) for number in (40.0, 41.0))
    (change,) = compare(base, head)
    assert (change.verdict, change.is_over_budget) == ("worse", True)
    (change,) = compare(make_metric("share", "percent", 1.0), make_metric("share", "percent", 99.0))
    assert (change.base_median, change.head_median, change.verdict) == (1.0, 99.0, "unclear")


@pytest.mark.parametrize(("head", "verdict"), [(2.0, "same"), (2.3, "unclear"), (3.0, "worse"), (0.0, "better")])
def test_counts_per_step_are_clear_from_half_a_count_on(head: float, verdict: str) -> None:
    (change,) = compare(make_metric("reads", "count", 2.0, 2.0), make_metric("reads", "count", head, head))
    assert change.verdict == verdict


def test_a_metric_of_one_side_is_unclear_and_samples_that_are_not_finite_are_left_out() -> None:
    report = make_report(make_metric("peak_allocated_bytes", "bytes", 5.0, budget=0.005))
    change = compare_metrics([report], [make_report()], {})[0]
    assert (change.base_median, math.isnan(change.head_median), change.effect) == (5.0, True, None)
    assert (change.verdict, change.is_over_budget, change.reason) == ("unclear", False, "Not measured in head.")
    head = make_report(make_metric("loss", "", 1.0, math.nan, math.inf, 3.0))
    change = compare_metrics([make_report(make_metric("loss", "", math.nan))], [head], {})[0]
    assert (change.head_median, change.reason) == (2.0, "Not measured in base.")


def test_a_statistic_other_than_the_median_is_named() -> None:
    report = make_report(step_metric(*range(1, 101)), make_metric("peak", "bytes", 1.0, 2.0))
    assert [(change.name, change.label, change.base_median) for change in compare_metrics([report], [report], {})] == [
        ("step_ms", "step ms", 50.5),
        ("peak", "peak (highest)", 2.0),
        ("failed_runs", "runs that failed", 0.0),
    ]


def test_a_head_that_runs_out_of_memory_fails_the_gate_and_an_interrupted_one_does_not() -> None:
    (change,) = compare_metrics([make_report()], [make_report(ended="out_of_memory", num_steps=0)], {})
    assert (change.name, change.verdict, change.is_over_budget) == ("failed_runs", "worse", True)
    (change,) = compare_metrics([make_report()], [make_report(ended="interrupted")], {})
    assert change.verdict == "same"


def test_a_peak_of_far_fewer_steps_is_unclear_unless_it_is_higher() -> None:
    high, low = (make_metric("peak", "bytes", size * 1e6, budget=0.005) for size in (123.0, 113.0))
    shorter_head = compare_metrics([make_report(high)], [make_report(low, num_steps=5)], {})[0]
    assert (shorter_head.verdict, shorter_head.is_over_budget) == ("unclear", False)
    assert "Base has 100 steps and head 5" in shorter_head.reason
    change = compare_metrics([make_report(low)], [make_report(high, num_steps=5)], {})[0]
    assert (change.verdict, change.is_over_budget) == ("worse", True)


def several(name: str, unit: str, base: tuple[float, float], head: tuple[float, float]) -> MetricChange:
    """A metric of two runs a side, each of one sample."""
    bases, heads = (
        [make_report(make_metric(name, unit, value, budget=0.1)) for value in side] for side in (base, head)
    )
    return compare_metrics(bases, heads, {})[0]


def test_with_several_runs_a_side_a_change_counts_where_all_of_one_lie_above_all_of_the_other() -> None:
    assert several("peak", "bytes", (100 * MIB, 101 * MIB), (104 * MIB, 105 * MIB)).verdict == "worse"
    assert several("peak", "bytes", (104 * MIB, 105 * MIB), (100 * MIB, 101 * MIB)).verdict == "better"
    assert several("peak", "bytes", (100 * MIB, 104 * MIB), (103 * MIB, 109 * MIB)).verdict == "unclear"
    assert several("peak", "bytes", (100 * MIB, 101 * MIB), (100 * MIB, 101 * MIB)).verdict == "same"


def test_a_read_in_every_tenth_step_counts_where_every_step_was_recorded() -> None:
    change = several("scalar_reads_per_step", "count", (0.1, 0.1), (0.2, 0.2))
    assert (change.verdict, change.budget) == ("worse", 0.0)
    assert change.is_over_budget


@pytest.mark.parametrize("num_runs", [1, 2])
def test_whole_runs_tell_nothing_of_time_and_gate_it_only_where_a_budget_asks(num_runs: int) -> None:
    bases, heads = ([make_report(step_metric(*[ms] * 50))] * num_runs for ms in (1.0, 90.0))
    change = compare_metrics(bases, heads, {})[0]
    assert (change.verdict, change.budget, change.is_over_budget) == ("unclear", None, False)
    assert compare_metrics(bases, heads, {"step_ms": 0.05})[0].budget == 0.05
