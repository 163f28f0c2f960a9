"""Which cases are recorded anew, by their names; the recording itself is `make fixtures`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.record_fixtures import RUNS, cases_named, main


def test_without_names_it_is_every_case_that_has_its_runs_in_the_repository() -> None:
    recorded = {Path(folder).name.removesuffix("-sick") for folder in RUNS.glob("*-sick")}
    assert {case.name for case in cases_named([])} == recorded


def test_a_name_that_no_case_has_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"no case 'input_stal' .*there are attention_activations, "):
        cases_named(["input_stal", "backward_peak"])


def test_help_records_nothing() -> None:
    asked = CliRunner().invoke(main, ["--help"])
    assert asked.exit_code == 0
    assert "Replace all of tests/runs/" in asked.output
