"""Which updates are told to train a model in evaluation mode."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from efprof.artifacts.events import CollectorStopped, TrainedAsEvaluated
from tests.recorder.recording import line_of, record_here

NUM_STEPS = 14


def make(*layers: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 8), *layers, nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, num: int = NUM_STEPS) -> None:
    for _ in range(num):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()


def left_in_it() -> None:
    model, optimizer = make(nn.Dropout(0.1), nn.BatchNorm1d(8))
    update(model, optimizer, 5)
    model.eval()  # left
    update(model, optimizer)


def always_in_it() -> None:
    model, optimizer = make(nn.Dropout(0.1))
    model.train(False)
    update(model, optimizer)


def goes_back() -> None:
    model, optimizer = make(nn.Dropout(0.1))
    for _ in range(3):
        model.eval()
        update(model, optimizer)
        model.train()
        update(model, optimizer, 2)


def has_no_such_layers() -> None:
    model, optimizer = make(nn.Dropout(0.0), nn.LayerNorm(8), nn.BatchNorm1d(8, track_running_stats=False))
    model.eval()
    update(model, optimizer)


def freezes_its_statistics() -> None:
    model, optimizer = make(nn.BatchNorm1d(8))
    model[1].eval()  # type: ignore[index]
    update(model, optimizer)


def asks_a_frozen_teacher() -> None:
    teacher, _ = make(nn.Dropout(0.1))
    student, optimizer = make()
    teacher.eval()
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        (student(torch.randn(4, 8)) - teacher(torch.randn(4, 8))).square().mean().backward()
        optimizer.step()


def attacks_itself_first() -> None:
    model, optimizer = make(nn.Dropout(0.1))
    for _ in range(NUM_STEPS):
        model.eval()
        inputs = torch.randn(4, 8, requires_grad=True)
        model(inputs).mean().backward()
        model.train()
        optimizer.zero_grad()
        model(inputs.detach()).mean().backward()
        optimizer.step()


def told(folder: Path, program: Callable[[], None]) -> TrainedAsEvaluated | None:
    """The last event of it."""
    recorded = record_here(folder, program)
    assert recorded.events(CollectorStopped) == []
    found = recorded.events(TrainedAsEvaluated)
    return found[-1] if found else None


def test_a_model_that_is_left_in_evaluation_mode_is_told_with_the_line_that_put_it_there(tmp_path: Path) -> None:
    event = told(tmp_path, left_in_it)
    assert event is not None
    assert (event.num_last, event.num_updates, event.module) == (NUM_STEPS, NUM_STEPS + 5, "Sequential")
    assert event.kinds == ["BatchNorm1d", "Dropout"]
    assert event.site is not None
    assert f":{line_of(Path(__file__), 'left')}:" in event.site


def test_one_that_never_was_in_training_mode_has_the_line_of_its_update(tmp_path: Path) -> None:
    event = told(tmp_path, always_in_it)
    assert event is not None
    assert (event.num_last, event.num_updates, event.site) == (NUM_STEPS, NUM_STEPS, None)
    assert event.backward_site is not None


def test_a_training_that_goes_back_is_counted_by_how_often_it_came_there(tmp_path: Path) -> None:
    event = told(tmp_path, goes_back)
    assert event is not None
    assert (event.num_last, event.num_evaluated, event.num_updates) == (0, 3 * NUM_STEPS, 3 * NUM_STEPS + 6)
    assert event.num_entries == 2


@pytest.mark.parametrize(
    "program", [has_no_such_layers, freezes_its_statistics, asks_a_frozen_teacher, attacks_itself_first]
)
def test_what_is_right_is_not_told(tmp_path: Path, program: Callable[[], None]) -> None:
    assert told(tmp_path, program) is None
