"""`efprof fit`: what it prints."""

from efprof.commands.fit import render_result, render_run
from efprof.fit.search import search

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
