"""Which cases are recorded anew, by their names; the recording itself is `make fixtures`."""

import gzip
import os
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.record_fixtures import FIXTURE_BYTES, RUNS, cases_named, keep_run, main


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


def test_a_kept_run_has_snapshots_that_name_no_machine_and_no_file_that_is_too_large(tmp_path: Path) -> None:
    run, place = tmp_path / "run", tmp_path / "kept"
    (run / "rank0").mkdir(parents=True)
    frame = {"filename": str(Path.cwd() / "train.py"), "line": 3}
    (run / "rank0" / "memory-1.pickle").write_bytes(pickle.dumps({"segments": [{"frames": [frame]}]}))
    (run / "rank0" / "trace-1.json.gz").write_bytes(gzip.compress(os.urandom(FIXTURE_BYTES + 1)))
    keep_run(run, place)
    assert [path.name for path in (place / "rank0").iterdir()] == ["memory-1.pickle"]
    snapshot = pickle.loads((place / "rank0" / "memory-1.pickle").read_bytes())  # noqa: S301
    assert snapshot["segments"][0]["frames"][0]["filename"] == "/home/user/efprof/train.py"
