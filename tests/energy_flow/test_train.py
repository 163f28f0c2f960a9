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
    assert (trained.returncode, trained.stdout) == (0, ""), trained.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_run_says_each_epoch_once_and_what_it_came_to(tmp_path: Path) -> None:
    result = _run("train", "--set", "data.max_pairs=32", "--steps", "6", "--out", "run", folder=tmp_path)
    device, *epochs, validation, saved = result.stderr.splitlines()
    assert "cpu" in device
    assert [line.split()[:2] for line in epochs] == [["epoch", "1"], ["epoch", "2"]], "three steps to an epoch of 24"
    assert "validation on 8 pairs" in validation
    assert saved.endswith("saved run/checkpoints/step-000006")


def test_steps_are_told_at_a_level_below_info(tmp_path: Path) -> None:
    settings = ("--set", "runtime.log_level=training", "--set", "training.log_interval=2")
    result = _run("train", "--steps", "4", *settings, folder=tmp_path)
    steps = [line.split()[1] for line in result.stderr.splitlines() if line.startswith("step") and "loss" in line]
    assert steps == ["2", "4"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--set", "lattice.widht=8"], "lattice.width"),
        (["train", "--steps", "many"], "training.steps"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "--resume"], "no checkpoint in data/energy_flow/runs/debug"),
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
