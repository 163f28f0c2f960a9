"""A run that is killed, again and again, ends with the bits of one that never was."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from energy_flow.data.dataset import PairDataset
from energy_flow.training.checkpoint_folder import find_checkpoints
from energy_flow.training.observation import METRICS_NAME
from tests.energy_flow.training.started_trainings import InSave, Starter, options
from tests.energy_flow.training.step_numbers import without_timings
from tests.support.waiting import MAX_WAIT_S

NUM_STEPS = 18
ALWAYS = [f"training.steps={NUM_STEPS}", "training.checkpoint_interval=3", "training.keep_checkpoints=2"]
RUNS = {
    "accumulating over dropped words, backing off on a schedule": [
        *("training.accumulation=2", "data.word_dropout=0.3"),
        *("backoff.window=3", "backoff.trigger=1", "backoff.recovery_steps=4"),
        *("optimizer.warmup_steps=4", "optimizer.final_learning_rate_share=0.1"),
    ],
    "float16": ["runtime.precision=float16", "scaler.growth_interval=2", "scaler.init_scale=65536"],
}
Train = Callable[..., bool]
LAST_OPERATION = 30
"""On files, that a training comes to before it is killed: those of three saves. More and it would come to its end."""


@pytest.fixture
def train(dataset: PairDataset, starter: Starter) -> Train:
    """Train, from a checkpoint if there is one, and kill it then or there; whether it came to its end first."""

    def start(out: Path, settings: list[str], after_s: float = MAX_WAIT_S, last_operation: int | None = None) -> bool:
        arguments = options("debug", out, [*ALWAYS, *settings], "--data", str(dataset.folder))
        arguments += ["--resume"] if find_checkpoints(out) else []
        dies_at = InSave(last_operation, out / "checkpoints") if last_operation else None
        training = starter.start(arguments, dies_at=dies_at)
        exit_code = training.end(after_s)
        assert exit_code in (0, -signal.SIGKILL), training.said
        return exit_code == 0

    return start


def _assert_same(out: Path, unbroken: Path) -> None:
    assert without_timings(out / METRICS_NAME) == without_timings(unbroken / METRICS_NAME)
    weights, expected = (load_file(find_checkpoints(folder)[0] / "model.safetensors") for folder in (out, unbroken))
    assert weights.keys() == expected.keys()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [pytest.param(one, id=name, marks=[pytest.mark.long] * (name == "float16")) for name, one in RUNS.items()],
)
def test_a_run_killed_at_any_instant_ends_with_the_bits_of_an_unbroken_one(
    train: Train, tmp_path: Path, settings: list[str]
) -> None:
    started = time.monotonic()
    assert train(tmp_path / "unbroken", settings)
    duration_s = time.monotonic() - started
    steps = without_timings(tmp_path / "unbroken" / METRICS_NAME)
    assert [step["step"] for step in steps] == list(range(1, NUM_STEPS + 1))
    dice, num_kills, has_ended = random.Random(0), 0, False
    while not has_ended:
        is_in_save = num_kills == 0 or dice.random() < 0.5
        if is_in_save:
            has_ended = train(tmp_path / "killed", settings, last_operation=dice.randrange(1, LAST_OPERATION))
        else:
            has_ended = train(tmp_path / "killed", settings, after_s=dice.uniform(0, duration_s / 2))
        num_kills += not has_ended
    _assert_same(tmp_path / "killed", tmp_path / "unbroken")
    assert num_kills > 0
