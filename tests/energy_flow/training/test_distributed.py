"""`energy-flow train` in two processes with the variables of torchrun, against one with twice the batch size."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from energy_flow.data.dataset import PairDataset
from energy_flow.folder_lock import claimed
from energy_flow.processes import ALONE
from tests.energy_flow.training.started_trainings import InSave, Started, Starter, options

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


@pytest.fixture(scope="module")
def two(dataset: PairDataset, starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder of two processes, and what they said."""
    out = tmp_path_factory.mktemp("two") / "out"
    return out, _end(starter.start_two(_arguments(dataset, out, *HALVES)))


@pytest.fixture(scope="module")
def broken_off(dataset: PairDataset, starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of two processes that took the first steps only."""
    out = tmp_path_factory.mktemp("broken off") / "out"
    _end(starter.start_two(_arguments(dataset, out, *HALVES, "training.steps=5")))
    return out


@pytest.fixture(scope="module")
def alone(dataset: PairDataset, starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("alone") / "out"
    return out, _end([starter.start(_arguments(dataset, out, "training.batch_size=8", "flow.max_flows=256"))])


def test_two_processes_reach_the_weights_and_losses_of_one_with_twice_the_batch_size(
    two: tuple[Path, str], alone: tuple[Path, str]
) -> None:
    (ours,), (theirs,) = (sorted(out.glob(f"checkpoints/step-*/{WEIGHTS}")) for out, _ in (two, alone))
    torch.testing.assert_close(load_file(ours), load_file(theirs), rtol=1e-3, atol=2e-4)
    ours, theirs = (_losses(out) for out, _ in (two, alone))
    assert len(ours) == STEPS
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_every_line_is_said_once_and_only_the_first_process_writes(
    two: tuple[Path, str], alone: tuple[Path, str]
) -> None:
    ours, theirs = (_said(output, r"^step +(\d+)  loss") for _, output in (two, alone))
    assert ours == theirs == ["5", "10", "15"]
    ours, theirs = (_said(output, r"^epoch +(\d+)") for _, output in (two, alone))
    assert ours == theirs == sorted(set(ours))
    assert len(ours) >= 2
    ours, theirs = ({path.name for path in out.rglob("*")} for out, _ in (two, alone))
    assert ours == theirs


def test_two_processes_that_go_on_end_with_the_bits_of_an_unbroken_run(
    two: tuple[Path, str], broken_off: Path, dataset: PairDataset, starter: Starter, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(broken_off, out)
    said = _end(starter.start_two([*_arguments(dataset, out, *HALVES), "--resume"]))
    assert "warning" not in said
    assert _losses(out) == _losses(two[0])
    weights, expected = (load_file(folder / f"checkpoints/step-{STEPS:06d}/{WEIGHTS}") for folder in (out, two[0]))
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


def test_going_on_with_another_number_of_processes_is_told(
    broken_off: Path, dataset: PairDataset, starter: Starter, tmp_path: Path
) -> None:
    shutil.copytree(broken_off, tmp_path / "out")
    said = _end([starter.start([*_arguments(dataset, tmp_path / "out", *HALVES), "--resume"])])
    assert "another number of processes (2 there, 1 here)" in said


def test_when_one_process_is_killed_the_other_says_so_in_one_sentence(
    dataset: PairDataset, starter: Starter, tmp_path: Path
) -> None:
    arguments = _arguments(dataset, tmp_path, *HALVES, "training.checkpoint_interval=2")
    first, second = starter.start_two(arguments, first_dies_at=InSave(2, tmp_path / "checkpoints"))
    assert first.end() == -signal.SIGKILL
    assert second.end() == 2
    assert second.said == "Error: another process of this run has ended; see what it says\n"


def test_two_processes_in_a_folder_where_another_run_is_at_work_say_so_once(
    dataset: PairDataset, starter: Starter, tmp_path: Path
) -> None:
    with claimed(tmp_path, ALONE):
        first, second = starter.start_two(_arguments(dataset, tmp_path, *HALVES))
        assert [first.end(), second.end()] == [2, 2]
    assert first.said.startswith(f"Error: another run (process {os.getpid()}) is at work in {tmp_path}")
    assert "Traceback" not in second.said
    # Before it torch may say in C++ that the store is gone, which under torchrun outlives the first process.
    # The first one may be gone before the second has joined it.
    last = second.said.splitlines()[-1]
    assert last == "Error: another process of this run has ended; see what it says" or "cannot join the others" in last


def _arguments(dataset: PairDataset, out: Path, *settings: str) -> list[str]:
    return options("debug", out, [*SETTINGS, *settings], "--data", str(dataset.folder))


def _end(started: list[Started]) -> str:
    """What they said, once all have come to their end."""
    for training in started:
        assert training.end() == 0, training.said
    return "".join(training.said for training in started)


def _losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def _said(output: str, pattern: str) -> list[str]:
    return re.findall(pattern, output, flags=re.MULTILINE)
