"""`energy-flow train` under plain torchrun, against the same command alone with twice the batch size."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROJECT = Path(__file__).parents[3]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STEPS = 16  # two epochs and the beginning of a third, of the 14 batches that accumulation makes 7 steps
SETTINGS = [
    f"training.steps={STEPS}",
    "training.accumulation=2",
    "training.log_interval=5",
    "training.text_loss_weight=0",  # a mean over tokens, of which the halves have unequal numbers
    "flow.convergence_threshold=1",  # convergence is of a batch, of which each process has another half
    "optimizer.learning_rate=0.0001",  # AdamW turns the last bits of a tiny gradient into whole steps
    "runtime.log_level=training",
]
HALVES = ["training.batch_size=4", "flow.max_flows=128"]  # of each process
WEIGHTS = "model.safetensors"


def _train(
    launcher: list[str], out: Path, *settings: str, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    assignments = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    command = [*launcher, "-m", "energy_flow.train", "train", "--config", "debug", "--out", str(out)]
    command += [*assignments, *options]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        command, cwd=out.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder of two processes, and what they said."""
    out = tmp_path_factory.mktemp("two") / "out"
    ran = _train(TORCHRUN, out, *HALVES)
    assert ran.returncode == 0, ran.stderr
    return out, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of two processes that took the first steps only."""
    out = tmp_path_factory.mktemp("broken off") / "out"
    ran = _train(TORCHRUN, out, *HALVES, options=["--steps", "5"])
    assert ran.returncode == 0, ran.stderr
    return out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("alone") / "out"
    ran = _train([sys.executable], out, "training.batch_size=8", "flow.max_flows=256")
    assert ran.returncode == 0, ran.stderr
    return out, ran.stdout + ran.stderr


def test_two_processes_reach_the_weights_of_one_with_twice_the_batch_size(
    two: tuple[Path, str], alone: tuple[Path, str]
) -> None:
    (ours,), (theirs,) = (sorted(out.glob(f"checkpoints/step-*/{WEIGHTS}")) for out, _ in (two, alone))
    torch.testing.assert_close(load_file(ours), load_file(theirs), rtol=1e-3, atol=2e-4)


def test_the_losses_written_down_are_those_of_all_processes(two: tuple[Path, str], alone: tuple[Path, str]) -> None:
    ours, theirs = (_losses(out) for out, _ in (two, alone))
    assert len(ours) == STEPS
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_every_line_is_said_once(two: tuple[Path, str], alone: tuple[Path, str]) -> None:
    ours, theirs = (_said(output, r"^step +(\d+)  loss") for _, output in (two, alone))
    assert ours == theirs == ["5", "10", "15"]


def test_each_epochs_line_is_said_once(two: tuple[Path, str], alone: tuple[Path, str]) -> None:
    ours, theirs = (_said(output, r"^epoch +(\d+)") for _, output in (two, alone))
    assert ours == theirs == sorted(set(ours))
    assert len(ours) >= 2


def test_only_the_first_process_writes(two: tuple[Path, str], alone: tuple[Path, str]) -> None:
    ours, theirs = ({path.name for path in out.rglob("*")} for out, _ in (two, alone))
    assert ours == theirs


def test_two_processes_that_go_on_end_with_the_bits_of_an_unbroken_run(
    two: tuple[Path, str], broken_off: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(broken_off, out)
    ran = _train(TORCHRUN, out, *HALVES, options=["--resume"])
    assert "warning" not in ran.stderr
    assert _losses(out) == _losses(two[0])
    weights, expected = (load_file(folder / f"checkpoints/step-{STEPS:06d}/{WEIGHTS}") for folder in (out, two[0]))
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


def test_going_on_with_another_number_of_processes_is_told(broken_off: Path, tmp_path: Path) -> None:
    shutil.copytree(broken_off, tmp_path / "out")
    ran = _train([sys.executable], tmp_path / "out", *HALVES, options=["--resume"])
    assert "another number of processes (2 there, 1 here)" in ran.stderr


def _losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def _said(output: str, pattern: str) -> list[str]:
    return re.findall(pattern, output, flags=re.MULTILINE)
