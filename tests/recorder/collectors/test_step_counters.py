"""Which whole numbers are told to grow by more than one with each update."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, StepCounter
from tests.recorder.recording import record_here
from tests.recorder.training import make_batch, make_training

NUM_UPDATES = 16


def update(model: torch.nn.Sequential, optimizer: torch.optim.Optimizer, num_passes: int = 1) -> None:
    for _ in range(num_passes):
        inputs, targets = make_batch()
        (model(inputs) - targets).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def raised_for_each_sample() -> None:
    model, optimizer = make_training()
    global_step = 0
    for _ in range(NUM_UPDATES):
        for _ in range(12):
            global_step += 1
        update(model, optimizer)
    assert global_step == 12 * NUM_UPDATES


class Trainer:
    def __init__(self) -> None:
        self.num_steps, self.limit = 0, 100

    def train(self, by: int = 4) -> None:
        model, optimizer = make_training()
        for _ in range(NUM_UPDATES):
            self.num_steps += by
            update(model, optimizer)


def raised_by_self() -> None:
    Trainer().train()


def told(folder: Path, train: Callable[[], None]) -> list[tuple[str, int]]:
    recorded = record_here(folder, train)
    assert recorded.events(CollectorStopped) == []
    return [(event.name, event.by) for event in recorded.events(StepCounter)]


@pytest.mark.parametrize(
    ("train", "expected"), [(raised_for_each_sample, ("global_step", 12)), (raised_by_self, ("self.num_steps", 4))]
)
def test_one_that_grows_by_more_than_one_is_told(
    train: Callable[[], None], expected: tuple[str, int], tmp_path: Path
) -> None:
    assert told(tmp_path, train) == [expected]


def counts_updates() -> None:
    Trainer().train(by=1)


def counts_micro_batches() -> None:
    model, optimizer = make_training()
    step = 0
    for _ in range(NUM_UPDATES):
        step += 4
        update(model, optimizer, num_passes=4)
    assert step


def counts_what_is_no_step() -> None:
    model, optimizer = make_training()
    num_samples = 0
    for _ in range(NUM_UPDATES):
        num_samples += 32
        update(model, optimizer)
    assert num_samples


def grows_by_turns() -> None:
    model, optimizer = make_training()
    step = 0
    for number in range(NUM_UPDATES):
        step += 1 + 3 * (number % 2)
        update(model, optimizer)
    assert step


@pytest.mark.parametrize("train", [counts_updates, counts_micro_batches, counts_what_is_no_step, grows_by_turns])
def test_others_are_not(train: Callable[[], None], tmp_path: Path) -> None:
    assert told(tmp_path, train) == []
