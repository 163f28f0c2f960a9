"""`efprof.step()` and `efprof.stage()`: marks in a training program."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import efprof
from tests.recorder.recording import PLAIN, Recorded, stages
from tests.recorder.training import BATCH, error_of, make_loader, make_training, train, train_step


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))


def test_marks_do_nothing_and_import_nothing_where_nothing_is_recorded() -> None:
    program = """
import efprof, sys
efprof.step()
with efprof.stage("forward"):
    pass
print(sorted({"torch", "msgspec"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["other", "Forward", ""])
def test_a_stage_of_another_name_is_refused_naming_the_four(name: str) -> None:
    with pytest.raises(ValueError, match="a stage is one of data, forward, backward, optimizer"):
        efprof.stage(name)


def test_a_loop_that_cannot_be_seen_is_recorded_by_its_marks() -> None:
    weight = torch.ones(3)
    with efprof.record(windows="none", holders=False) as recording:
        for _ in range(4):
            with efprof.stage("data"):
                batch = torch.randn(8, 3)
            with efprof.stage("forward"):
                error = (batch * weight).sum(1)
            with efprof.stage("backward"):
                gradient = (batch * error[:, None]).mean(0)
            with efprof.stage("optimizer"):
                weight -= 0.01 * gradient
            efprof.step()
    assert [stages(step) for step in Recorded(folder=recording.folder).steps] == [PLAIN] * 4


def test_only_marks_divide_steps_once_there_is_one() -> None:
    with efprof.record(windows="none", holders=False) as recording:
        model, optimizer = make_training()
        for _ in range(3):
            train(model, make_loader(2), optimizer)
            efprof.step()
    steps = Recorded(folder=recording.folder).steps
    assert [step.micro_batches for step in steps] == [1, 1, 2, 2]
    assert [step.samples for step in steps] == [BATCH, BATCH, 2 * BATCH, 2 * BATCH]


@pytest.mark.parametrize("feeds", [True, False], ids=["from a loader", "without a loader"])
def test_an_evaluation_between_marked_steps_belongs_to_none(feeds: bool) -> None:
    evaluated: list[float] = []

    def evaluate(model: torch.nn.Module) -> None:
        with torch.no_grad():
            for inputs, targets in make_loader(3) if feeds else [(torch.ones(2, 3), torch.ones(2, 1))] * 3:
                evaluated.append(time.time())
                error_of(model, inputs, targets)

    with efprof.record(windows="none", holders=False) as recording:
        model, optimizer = make_training()
        for inputs, targets in make_loader(6):
            train_step(model, optimizer, inputs, targets)
            efprof.step()
            evaluate(model)
    steps = Recorded(folder=recording.folder).steps
    assert [step.samples for step in steps] == [BATCH] * 6
    for step in steps:
        start = step.started_ns / 1e9
        assert not any(start < instant < start + step.total_us / 1e6 for instant in evaluated)


def test_an_error_within_a_marked_stage_passes_through_and_ends_it() -> None:
    with efprof.record(windows="none", holders=False) as recording:
        for number in range(3):
            try:
                with efprof.stage("forward"):
                    1 / (number - 1)
            except ZeroDivisionError:
                pass
            with efprof.stage("backward"):
                pass
            efprof.step()
    assert [stages(step) for step in Recorded(folder=recording.folder).steps] == [["forward", "backward"]] * 3
