"""How often schedules of the learning rate are told to move on for each update."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from efprof.artifacts.events import CollectorStopped, ScheduleMoves
from tests.recorder.recording import HARDLY_ANY_IN_FULL, line_of, record_here
from tests.recorder.training import make_batch, make_training

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
"""Torch notices the order of the first two calls."""

NUM_UPDATES = 8
NUM_SEEN = NUM_UPDATES - 1
"""What comes before the first update was not seen in full."""

Make = Callable[[torch.optim.Optimizer], Any]


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=10, steps_per_epoch=30)


def restarts(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10)


def sequence(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


def _factor(step: int, *, num_training_steps: int) -> float:
    return 1 - step / num_training_steps


def as_transformers(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.LambdaLR(optimizer, partial(_factor, num_training_steps=500))


def train(
    make: Make = cosine,
    *,
    num_batches: int = 3,
    before: int = 0,
    in_each: int = 0,
    after: int = 0,
    num_updates: int = NUM_UPDATES,
) -> None:
    """The schedule moves so often before each update, with each of its batches, and after it."""
    model, optimizer = make_training()
    schedule = make(optimizer)
    for _ in range(num_updates):
        for _ in range(num_batches):
            inputs, targets = make_batch()
            (model(inputs) - targets).square().mean().backward()
            for _ in range(in_each):
                schedule.step()  # in each
        for _ in range(before):
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(after):
            schedule.step()


def give_the_epoch() -> None:
    model, optimizer = make_training()
    schedule, plateau = restarts(optimizer), lr_scheduler.ReduceLROnPlateau(optimizer)
    for number in range(3 * NUM_UPDATES):
        inputs, targets = make_batch()
        (model(inputs) - targets).square().mean().backward()
        schedule.step(number / 3)
        plateau.step(1.0)
        if number % 3 == 2:
            optimizer.step()


def two_optimizers() -> None:
    """Of one update each, with schedules of their own that move at the end."""
    pairs = [make_training(), make_training()]
    schedules = [cosine(optimizer) for _, optimizer in pairs]
    for _ in range(NUM_UPDATES):
        for model, optimizer in pairs:
            inputs, targets = make_batch()
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
        for schedule in schedules:
            schedule.step()


def told(folder: Path, program: Callable[[], None], **options: object) -> list[ScheduleMoves]:
    recorded = record_here(folder, program, **options)
    assert recorded.events(CollectorStopped) == []
    return list({event.number: event for event in recorded.events(ScheduleMoves)}.values())


@pytest.mark.parametrize("num_batches", [2, 3])
def test_a_schedule_that_moves_with_each_batch_drifts_in_each_update(num_batches: int, tmp_path: Path) -> None:
    (event,) = told(tmp_path, partial(train, num_batches=num_batches, in_each=1))
    assert (event.num_updates, event.num_drifting) == (NUM_SEEN, NUM_SEEN)
    assert event.num_moves == num_batches * NUM_SEEN
    assert event.site is not None
    assert event.site.split(":")[1:] == [str(line_of(Path(__file__), "in each")), "train"]


@pytest.mark.parametrize(
    ("settings", "num_moves"),
    [
        ({"after": 1}, 1),
        ({"before": 1}, 1),
        ({"before": 1, "after": 1}, 2),
        ({"after": 4}, 4),
        ({"in_each": 1, "num_batches": 1}, 1),
    ],
    ids=["after", "before", "both", "for four processes", "one batch"],
)
def test_one_that_moves_between_two_updates_does_not(settings: dict[str, int], num_moves: int, tmp_path: Path) -> None:
    (event,) = told(tmp_path, partial(train, **settings))
    assert (event.num_updates, event.num_drifting, event.num_moves) == (NUM_SEEN, 0, num_moves * NUM_SEEN)


def test_each_of_two_optimizers_has_a_schedule_that_does_not(tmp_path: Path) -> None:
    events = told(tmp_path, two_optimizers)
    assert [event.num_drifting for event in events] == [0, 0]
    assert all(event.num_updates for event in events)


def test_a_move_to_a_given_epoch_and_one_by_a_metric_are_none(tmp_path: Path) -> None:
    assert all(event.num_moves == 0 for event in told(tmp_path, give_the_epoch))


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (cosine, ("T_max", 40)),
        (one_cycle, ("total_steps", 300)),
        (as_transformers, ("num_training_steps", 500)),
        (restarts, ("", None)),
    ],
)
def test_the_length_that_it_was_made_with_is_told(make: Make, length: tuple[str, int | None], tmp_path: Path) -> None:
    (event,) = told(tmp_path, partial(train, make, in_each=1))
    assert (event.length_name, event.length) == length


def test_a_schedule_of_schedules_is_told_alone(tmp_path: Path) -> None:
    moving = [event for event in told(tmp_path, partial(train, sequence, in_each=1)) if event.num_moves]
    assert [event.schedule for event in moving] == ["SequentialLR"]


@pytest.mark.parametrize("settings", [{"in_each": 1}, {"after": 1}])
def test_light_steps_in_between_change_nothing(settings: dict[str, int], tmp_path: Path) -> None:
    program = partial(train, num_updates=150, **settings)
    (event,) = told(tmp_path, program, overhead=HARDLY_ANY_IN_FULL)
    assert event.num_updates >= NUM_SEEN
    assert event.num_moves == event.num_updates * (3 if "in_each" in settings else 1)
    assert event.num_drifting == event.num_updates * ("in_each" in settings)
