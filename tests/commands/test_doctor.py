"""`efprof doctor` from the command line to its exit code."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from efprof.commands.doctor import WIDTH, doctor
from efprof.recorder.doctor import checks


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))


def run_doctor(*arguments: str) -> Result:
    return CliRunner().invoke(doctor, arguments, catch_exceptions=False, standalone_mode=False)


def test_a_machine_that_can_record_is_fine_and_its_traps_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128")
    done = run_doctor()
    assert done.return_value == 0
    assert done.stdout.endswith("\nTraining can be recorded here.\n")
    assert "careful  allocator settings" in done.stdout
    assert max(map(len, done.stdout.replace(str(tmp_path), "~").splitlines())) <= WIDTH
    assert done.stderr == ""


def test_a_machine_that_cannot_record_fails_and_says_by_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MIN_PYTHON", (99, 0))
    monkeypatch.setattr(checks, "MAX_PYTHON", (99, 1))
    done = run_doctor("--json")
    found = json.loads(done.stdout)
    assert (done.return_value, found["can_record"]) == (1, False)
    failed = [check for check in found["checks"] if check["is_essential"] and check["status"] == "no"]
    assert [check["name"] for check in failed] == ["Python"]
    assert failed[0]["advice"] == "Install efprof into an environment of Python 99.0 to 99.1."
