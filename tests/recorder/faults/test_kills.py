"""A training killed at any instant leaves a run that reads, with all finished steps but one, and their numbers."""

import mmap
import random
import signal
import struct
import time
from pathlib import Path

import pytest

from efprof.artifacts.run_file import read_run_file
from efprof.artifacts.steps import STEPS_FILE, read_steps
from efprof.commands.report import analyse
from tests.recorder.conftest import Begin
from tests.support.waiting import wait_until

NUM_KILLS = 20

WINDOW = 20
"""The step of the profiler window in every other run; to open and to write it takes some 0.2 s."""

TRAINING = """
import mmap, struct, torch
from torch.utils.data import DataLoader, TensorDataset

inputs = torch.randn(4096, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
with open("finished", "r+b") as file:
    finished = mmap.mmap(file.fileno(), 8)
for number, (batch, targets) in enumerate(loader, start=1):
    loss = torch.nn.functional.mse_loss(model(batch), targets)
    loss.backward()
    optimizer.step()
    finished[:] = struct.pack("q", number)
    optimizer.zero_grad()
    kept.append(loss)
"""


def num_finished(place: Path) -> int:
    """How many optimizer steps the program itself had counted; the count survives it."""
    with (place / "finished").open("rb") as file, mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ) as counter:
        (count,) = struct.unpack("q", counter[:])
    return int(count)


def wait_until_finished(place: Path, num_steps: int) -> None:
    wait_until(lambda: num_finished(place) >= num_steps)


@pytest.mark.long
def test_kills_at_random_instants_lose_one_step_each_at_most(begin: Begin, tmp_path: Path) -> None:
    dice = random.Random(0)
    counts = []
    for number in range(NUM_KILLS):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "finished").write_bytes(bytes(8))
        is_in_window = number % 2 == 1
        child = begin(TRAINING, place=place, trace_steps=((WINDOW, WINDOW + 1),) if is_in_window else ())
        wait_until_finished(place, WINDOW if is_in_window else dice.randrange(120))
        time.sleep(dice.uniform(0.0, 0.2 if is_in_window else 0.003))
        assert child.end_by(signal.SIGKILL) == -signal.SIGKILL
        counts.append(num_finished(place))
        rank = child.folder / "rank0"
        steps, num_torn = read_steps(rank) if (rank / STEPS_FILE).exists() else ([], 0)
        assert [step.step for step in steps] == list(range(len(steps)))
        assert counts[-1] - len(steps) <= 1
        assert [step.step for step in steps if step.loss is None or step.learning_rate is None] == []
        assert num_torn <= 1
        assert read_run_file(child.folder).ended == "running"
        assert analyse(child.folder).run.num_steps == len(steps)
    assert len(set(counts)) > NUM_KILLS / 5, "the instants differ"
