"""A run that is killed, again and again, ends with the bits of one that never was."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from energy_flow.data.dataset import PairDataset
from energy_flow.training.checkpoint_folder import find_checkpoints

NUM_STEPS = 18
ALWAYS = [f"training.steps={NUM_STEPS}", "training.checkpoint_interval=3", "training.keep_checkpoints=2"]
RUNS = {
    "accumulating over dropped words": ["training.accumulation=2", "data.word_dropout=0.3"],
    "float16": ["runtime.precision=float16", "scaler.growth_interval=2", "scaler.init_scale=65536"],
    "backing off on a schedule": [
        *("backoff.window=3", "backoff.trigger=1", "backoff.recovery_steps=4"),
        *("optimizer.warmup_steps=4", "optimizer.final_learning_rate_share=0.1"),
    ],
}
MEASURED = ("_ms", "_bytes", "_per_second", "_percent")
"""How the names of those metrics end that differ from run to run."""
NUM_TRIALS = 2
LAST_OPERATION = 30
"""On files, that a training comes to before it is killed: those of three saves. More and it would come to its end."""
MAX_WAIT_S = 60


def _be_killed_at_operation(number: int, folder: str) -> None:
    """Let this process be killed at so manieth operation on files below `folder`, which is within a save."""
    rest = number

    def count(event: str, arguments: Sequence[Any]) -> None:
        nonlocal rest
        if event in ("open", "os.mkdir", "os.rename", "os.rmdir") and folder in str(arguments[0]):
            rest -= 1
            if rest == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def _do_nothing() -> None:
    pass


def _train(arguments: list[str], out: str, last_operation: int) -> None:
    """Be `energy-flow train`, in a process of its own."""
    from energy_flow import train

    output = os.open(f"{out}.output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if last_operation:
        _be_killed_at_operation(last_operation, f"{out}/checkpoints")
    sys.argv = ["energy-flow", "train", *arguments]
    train.main()


class Starter:
    """Starts trainings over one dataset in processes that have torch imported already."""

    def __init__(self, dataset: PairDataset) -> None:
        self.dataset = dataset
        self.context = multiprocessing.get_context("forkserver")
        # The optimizer imports torch._dynamo when it is first made, for a second.
        self.context.set_forkserver_preload(["torch._dynamo", "energy_flow.training.energy_trainer"])
        first = self.context.Process(target=_do_nothing)  # which waits for the imports
        first.start()
        first.join()

    def train(self, out: Path, settings: list[str], *, after_s: float = MAX_WAIT_S, last_operation: int = 0) -> bool:
        """Train, from a checkpoint if there is one, and kill it then or there; whether it came to its end first."""
        arguments = ["--config", "debug", "--data", str(self.dataset.folder), "--out", str(out)]
        arguments += [part for setting in (*ALWAYS, *settings) for part in ("--set", setting)]
        arguments += ["--resume"] if find_checkpoints(out) else []
        process = self.context.Process(target=_train, args=(arguments, str(out), last_operation))
        process.start()
        process.join(after_s)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), Path(f"{out}.output").read_text()
        return process.exitcode == 0


@pytest.fixture(scope="module")
def starter(dataset: PairDataset) -> Starter:
    return Starter(dataset)


def _steps(out: Path) -> list[dict[str, Any]]:
    """What the run wrote of its steps, but for time and memory."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.endswith(MEASURED)} for line in lines]


def _assert_same(out: Path, unbroken: Path) -> None:
    assert _steps(out) == _steps(unbroken)
    weights, expected = (load_file(find_checkpoints(folder)[0] / "model.safetensors") for folder in (out, unbroken))
    assert weights.keys() == expected.keys()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


@pytest.mark.slow
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_a_run_killed_at_any_instant_ends_with_the_bits_of_an_unbroken_one(
    starter: Starter, tmp_path: Path, settings: list[str]
) -> None:
    started = time.monotonic()
    assert starter.train(tmp_path / "unbroken", settings)
    duration_s = time.monotonic() - started
    assert [step["step"] for step in _steps(tmp_path / "unbroken")] == list(range(1, NUM_STEPS + 1))
    dice, num_kills = random.Random(0), 0
    for number in range(NUM_TRIALS):
        out, has_ended = tmp_path / str(number), False
        while not has_ended:
            is_in_save = dice.random() < 0.5
            if is_in_save:
                has_ended = starter.train(out, settings, last_operation=dice.randrange(1, LAST_OPERATION))
            else:
                has_ended = starter.train(out, settings, after_s=dice.uniform(0, duration_s / 2))
            num_kills += not has_ended
        _assert_same(out, tmp_path / "unbroken")
    assert num_kills > NUM_TRIALS
