"""The numbers of short steps that are recorded together, also where not all of them are written any more."""

import math
import signal
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.pending import PENDING_FILE
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.recorder.collectors import numbers
from tests.recorder.conftest import Begin
from tests.recorder.recording import Recorded, record_here
from tests.recorder.test_loop import error_of, make_loader, make_model

LONG = 120

KILL_AT = 200

KILLED = """
import os, signal, torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1).to({dtype})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({kill_at} + 1):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 3, dtype={dtype})).square().sum()
    if step >= {bad_from}:
        loss = loss * float("nan")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def steps_of_killed(begin: Begin, *, dtype: torch.dtype = torch.float32, bad_from: int = KILL_AT) -> list[StepRecord]:
    """Those that were over; many of them were not written."""
    child = begin(KILLED.format(kill_at=KILL_AT, dtype=dtype, bad_from=bad_from))
    assert child.wait() == -signal.SIGKILL
    assert (child.folder / "rank0" / PENDING_FILE).exists()
    steps, _ = read_steps(child.folder / "rank0")
    assert [step.step for step in steps] == list(range(KILL_AT))
    return steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_steps_of_a_killed_process_have_their_numbers(dtype: torch.dtype, begin: Begin) -> None:
    steps = steps_of_killed(begin, dtype=dtype)
    assert [step.step for step in steps if step.loss is None] == []
    assert [step.step for step in steps if step.learning_rate is None] == []
    assert [step.step for step in steps if step.gradient_norm is None] == []


def test_a_process_that_is_killed_after_its_numbers_turned_bad_has_said_so_of_each_step(begin: Begin) -> None:
    steps = steps_of_killed(begin, bad_from=150)
    assert {(step.loss, step.gradient_norm) for step in steps[150:]} == {("nan", "nan")}
    assert all(isinstance(step.loss, float) and isinstance(step.gradient_norm, float) for step in steps[:150])


def test_a_learning_rate_that_only_python_can_read_is_known_in_every_step(tmp_path: Path) -> None:
    def train() -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.25, dtype=torch.float64))
        for _ in range(LONG):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert [step.learning_rate for step in record_here(tmp_path, train).steps] == [0.25] * LONG


def norm_of(module: torch.nn.Module) -> float:
    return math.hypot(
        *(float(parameter.grad.norm()) for parameter in module.parameters() if parameter.grad is not None)
    )


@pytest.mark.parametrize("clipped", [(), (0,), (1,), (0, 1)])
def test_the_norm_of_a_step_whose_second_optimizer_breaks_a_sprint_is_of_both_or_unknown(
    clipped: tuple[int, ...], tmp_path: Path
) -> None:
    norms: list[float] = []

    def train_the_second_rarely() -> None:
        models = [make_model(), make_model()]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.0001) for model in models]
        for step, (inputs, targets) in enumerate(make_loader(LONG)):
            of_each = []
            for number in (0, 1) if step % 20 == 19 else (0,):
                optimizers[number].zero_grad()
                (error_of(models[number], inputs, targets) * (1 + 9 * number)).backward()
                of_each.append(norm_of(models[number]))
                if number in clipped:
                    torch.nn.utils.clip_grad_norm_(models[number].parameters(), 0.1)
                optimizers[number].step()
            norms.append(math.hypot(*of_each))

    recorded = record_here(tmp_path, train_the_second_rarely)
    known = {step.step: step.gradient_norm for step in recorded.steps if step.gradient_norm is not None}
    assert known == pytest.approx({step: norms[step] for step in known})
    assert len(known) == LONG or clipped != (0, 1)
    assert recorded.events(CollectorStopped) == []


def test_clipping_that_leaves_some_out_from_within_a_sprint_on_is_noticed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "MAX_STRIDE", 10)

    def train_and_clip(num_whole: int) -> None:
        layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
        for step in range(LONG):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().sum().backward()
            clipped = model if step < num_whole else layers[1]
            torch.nn.utils.clip_grad_norm_(clipped.parameters(), 0.001)
            optimizer.step()

    def num_unknown(recorded: Recorded) -> int:
        return sum(step.gradient_norm is None for step in recorded.steps)

    assert num_unknown(record_here(tmp_path / "whole", lambda: train_and_clip(LONG))) == 0
    assert num_unknown(record_here(tmp_path / "part", lambda: train_and_clip(80))) > 20
