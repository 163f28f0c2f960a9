"""`efprof record --report`: the answer in one screen when the program has ended, whose exit code is passed on."""

from pathlib import Path

import click.testing
import pytest

from efprof.commands.record import record
from efprof.commands.report import analyse
from efprof.recorder.launch import launch
from efprof.report.brief import render_brief_text

SICK = Path(__file__).parents[1] / "runs/nonfinite_loss-sick"


def record_as(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, exit_code: int = 0) -> click.testing.Result:
    """The command, where the program that it starts has left that folder and ended so."""
    monkeypatch.setattr(launch, "launch", lambda command, **_: (folder, exit_code))
    return click.testing.CliRunner().invoke(record, [*options, "--", "python", "train.py"], standalone_mode=False)


def test_it_prints_the_brief_form_of_the_new_run_and_passes_the_exit_code_on(monkeypatch: pytest.MonkeyPatch) -> None:
    done = record_as(SICK, monkeypatch, "--report", exit_code=3)
    assert done.stdout == render_brief_text(analyse(SICK))
    assert "tests/casebook/nonfinite_loss.py:25" in done.stdout.splitlines()[0]
    assert done.return_value == 3
    assert f"recorded {SICK.name}; read it with 'efprof report'" in done.stderr


def test_without_the_option_nothing_is_printed_for_the_program_to_be_mixed_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = record_as(SICK, monkeypatch)
    assert (done.stdout, done.return_value) == ("", 0)


def test_a_run_that_cannot_be_reported_is_a_sentence_and_the_exit_code_still_the_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = record_as(tmp_path, monkeypatch, "--report", exit_code=7)
    assert done.exception is None
    assert done.stdout.startswith("efprof: there is no report: ")
    assert len(done.stdout.splitlines()) == 1
    assert done.return_value == 7
