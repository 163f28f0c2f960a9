import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.energy_flow.training.started_trainings import Starter

PROJECT = Path(__file__).parents[2]


def test_a_users_pairs_become_a_dataset_that_trains(starter: Starter, tmp_path: Path) -> None:
    lines = [json.dumps({"input": f"text number {n}", "target": f"answer {n}"}) for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    built = starter.start(["data", "build", "--out", "set", "--pairs", "pairs.jsonl"], inside=tmp_path)
    assert (built.end(), built.printed, built.said) == (0, "20 pairs in set\n", "")
    words = ["--data", "set", "--out", "run", "--steps", "4", "--seed", "3", "--set", "training.log_interval=2"]
    command = [sys.executable, "-m", "energy_flow.train", "train", *words]  # as users start it
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONWARNINGS": "error"}
    trained = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (trained.returncode, trained.stdout) == (0, ""), trained.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_run_says_each_epoch_once_and_what_it_came_to(starter: Starter, tmp_path: Path) -> None:
    arguments = ["train", "--set", "data.max_pairs=32", "--steps", "6", "--out", "run"]
    training = starter.start(arguments, inside=tmp_path)
    assert training.end() == 0
    device, *epochs, validation, saved = training.said.splitlines()
    assert "cpu" in device
    assert [line.split()[:2] for line in epochs] == [["epoch", "1"], ["epoch", "2"]], "three steps to an epoch of 24"
    assert "validation on 8 pairs" in validation
    assert saved.endswith("saved run/checkpoints/step-000006")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--set", "lattice.widht=8"], "lattice.width"),
        (["train", "--steps", "many"], "training.steps"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "--resume"], "no checkpoint in data/energy_flow/runs/debug"),
        (["data", "build", "--out", "set", "--pairs", "none.tsv"], "none.tsv"),
        (["train", "--stepz", "3"], "--steps"),
        (["train", "--resume", "--out", "mistyped"], "no checkpoint in mistyped"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2_and_leaves_nothing_there(
    starter: Starter, tmp_path: Path, arguments: list[str], named: str
) -> None:
    command = starter.start(arguments, inside=tmp_path)
    assert command.end() == 2
    assert named in command.said
    assert "Traceback" not in command.said
    assert command.said.splitlines()[-1].startswith("Error: ")
    assert command.printed == ""
    assert not (tmp_path / "mistyped").exists()


def test_importing_the_command_does_not_import_torch() -> None:
    code = "import sys, energy_flow.train; print('torch' in sys.modules, 'numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
