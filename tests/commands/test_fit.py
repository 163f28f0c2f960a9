"""`efprof fit`: what it prints."""

import pytest

from efprof.commands.fit import render_result, render_run
from efprof.fit.search import search
from efprof.model import EfprofError

MIB = 1024**2


def test_the_result_names_the_largest_that_ran_and_where_none_fits_says_so() -> None:
    found = search(lambda batch: 100 * MIB + batch * MIB, 500 * MIB, smallest=2)
    assert render_result(found, 500 * MIB).splitlines() == [
        "Largest that ran below 500 MiB: 400 (peak 500 MiB).",
        "Memory: 100 MiB and 1.00 MiB per sample, near the budget.",
        "Train with 300: a quarter is left for what a few steps do not show.",
    ]
    found = search(lambda _: 600 * MIB, 500 * MIB, smallest=2)
    assert render_result(found, 500 * MIB) == "No batch size that was tried stays below 500 MiB."


def test_each_run_is_a_line() -> None:
    assert render_run(1024, 300 * MIB, 500 * MIB) == "  batch   1,024   peak   300 MiB"
    assert render_run(2, 600 * MIB, 500 * MIB).endswith("over budget")
    assert render_run(2, None, 500 * MIB).endswith("ran out of memory")


def test_sizes_that_ran_are_kept_when_a_larger_one_fails_and_it_is_said_why() -> None:
    def measure(batch: int) -> int:
        if batch > 100:
            raise EfprofError("'train.py 128' trained no step; it said last: the data set is too small")
        return 100 * MIB + batch * MIB

    found = search(measure, 500 * MIB, smallest=2)
    assert render_result(found, 500 * MIB).splitlines() == [
        "Largest that ran below 500 MiB: 32 (peak 132 MiB).",
        "Memory: 100 MiB and 1.00 MiB per sample, near the budget.",
        "Stopped at 128: 'train.py 128' trained no step; it said last: the data set is too small",
        "Train with 24: a quarter is left for what a few steps do not show.",
    ]


def test_a_program_that_never_ran_is_an_error() -> None:
    def measure(batch: int) -> int:
        raise EfprofError("no such data set")

    with pytest.raises(EfprofError, match="no such data set"):
        search(measure, 500 * MIB, smallest=2)
