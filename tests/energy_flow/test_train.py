import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def _run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "energy_flow.train", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONWARNINGS": "error"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_users_pairs_become_a_dataset_that_trains(tmp_path: Path) -> None:
    lines = [json.dumps({"input": f"text number {n}", "target": f"answer {n}"}) for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    built = _run("data", "build", "--out", "set", "--pairs", "pairs.jsonl", folder=tmp_path)
    assert (built.returncode, built.stdout, built.stderr) == (0, "20 pairs in set\n", "")
    trained = _run(
        *("train", "--data", "set", "--out", "run", "--steps", "4", "--seed", "3"),
        *("--set", "training.log_interval=2"),
        folder=tmp_path,
    )
    assert (trained.returncode, trained.stderr) == (0, "")
    assert [line.split()[1] for line in trained.stdout.splitlines()] == ["2", "4"]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--set", "lattice.widht=8"], "lattice.width"),
        (["train", "--steps", "many"], "training.steps"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "--resume"], "checkpoint.pt"),
        (["data", "build", "--out", "set", "--pairs", "none.tsv"], "none.tsv"),
        (["train", "--stepz", "3"], "--steps"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], named: str) -> None:
    result = _run(*arguments, folder=tmp_path)
    assert result.returncode == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.stdout == ""


def test_importing_the_command_does_not_import_torch() -> None:
    code = "import sys, energy_flow.train; print('torch' in sys.modules, 'numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
