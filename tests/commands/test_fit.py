"""`efprof fit`: what it refuses, and what it prints."""

from click.testing import CliRunner

from efprof.commands.fit import fit, render_result, render_run
from efprof.fit.search import search

MIB = 1024**2


def test_a_command_without_a_place_for_the_batch_is_refused() -> None:
    result = CliRunner().invoke(fit, ["--budget", "1GiB", "--", "python", "train.py"])
    assert result.exit_code == 2
    assert "must name the batch size as {batch}" in result.output


def test_a_size_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(fit, ["--budget", "much", "--", "python", "train.py", "{batch}"])
    assert result.exit_code == 2
    assert "'much' is no size, such as 24GiB or 512MiB." in result.output


def test_limits_that_cross_are_refused() -> None:
    words = ["--budget", "1GiB", "--max-batch", "2", "--min-batch", "4", "--", "python", "train.py", "{batch}"]
    result = CliRunner().invoke(fit, words)
    assert result.exit_code == 2
    assert "--max-batch 2 is below --min-batch 4." in result.output


def test_the_result_names_the_largest_that_ran_and_the_one_to_take() -> None:
    found = search(lambda batch: 100 * MIB + batch * MIB, 500 * MIB, smallest=2)
    assert render_result(found, 500 * MIB).splitlines() == [
        "Largest that ran below 500 MiB: 400 (peak 500 MiB).",
        "Memory: 100 MiB and 1.00 MiB per sample; the line misses the runs by 0 B.",
        "Train with 300: a margin for what a few steps do not show.",
    ]


def test_where_none_fits_it_says_so() -> None:
    found = search(lambda _: 600 * MIB, 500 * MIB, smallest=2)
    assert render_result(found, 500 * MIB) == "No batch size that was tried stays below 500 MiB."


def test_each_run_is_a_line() -> None:
    assert render_run(1024, 300 * MIB, 500 * MIB) == "  batch   1,024   peak   300 MiB"
    assert render_run(2, 600 * MIB, 500 * MIB).endswith("over budget")
    assert render_run(2, None, 500 * MIB).endswith("ran out of memory")
