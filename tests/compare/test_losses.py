"""Whether the losses of two sides are the same, and when a difference gates."""

import math

import pytest

from efprof.compare.losses import compare_losses
from efprof.model import MetricChange, Report
from tests.compare.reports import make_report, with_losses


def report_with(*losses: float | None) -> Report:
    return with_losses(make_report(), losses)


def row_of(bases: list[Report], heads: list[Report], **budgets: float) -> MetricChange:
    (row,) = compare_losses(bases, heads, budgets)
    return row


SEEDED = report_with(3.0, 2.0, 1.0)


def test_losses_that_are_equal_to_the_bit_are_the_same_and_nan_equals_nan() -> None:
    row = row_of([SEEDED, SEEDED], [SEEDED, SEEDED])
    assert (row.verdict, row.reason, row.head_median) == ("same", "In 3 steps losses are equal to the bit.", 0)
    broken = report_with(3.0, math.nan)
    assert row_of([broken], [broken]).verdict == "same"


def test_what_lies_no_further_from_bases_runs_than_these_from_each_other_is_the_same() -> None:
    bases = [SEEDED, report_with(3.0, 2.2, 1.0)]
    assert row_of(bases, [report_with(3.0, 2.3, 1.0)]).verdict == "same"
    row = row_of(bases, [report_with(3.0, 2.5, 1.0)])
    assert (row.verdict, row.head_median, row.reason) == ("unclear", 1, "Losses differ from step 1 on.")


def test_a_program_without_a_seed_is_said_to_be_that() -> None:
    row = row_of([SEEDED, report_with(3.1, 2.0, 1.0)], [report_with(9.0, 9.0, 9.0)], loss=0.0)
    assert (row.is_over_budget, row.budget) == (False, 0.0), "it is no gate that was passed: --strict fails"
    assert (row.verdict, row.reason) == (
        "unclear",
        "Base differs from base at its first step: the program sets no seed.",
    )


def test_one_run_a_side_says_that_it_does_not_know_bases_own_spread() -> None:
    assert row_of([SEEDED], [report_with(3.0, 2.0, 1.1)]).reason.endswith("what base's own runs differ by.")


def test_a_difference_gates_only_with_a_budget() -> None:
    other = report_with(3.0, 2.0, 1.1)
    assert not row_of([SEEDED, SEEDED], [other]).is_over_budget
    row = row_of([SEEDED, SEEDED], [other], loss=0.0)
    assert (row.verdict, row.is_over_budget) == ("worse", True)
    assert not row_of([SEEDED, SEEDED], [other], loss=0.5).is_over_budget
    assert not row_of([SEEDED, SEEDED], [SEEDED], loss=0.0).is_over_budget


@pytest.mark.parametrize("head", [report_with(), report_with(None, None)])
def test_without_losses_on_both_sides_there_is_no_row(head: Report) -> None:
    assert compare_losses([SEEDED], [head], {}) == ()
