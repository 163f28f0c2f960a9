"""Loops whose calls come to torch by way of others: schedules of schedules, and what passes a loader's batches on."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from efprof.artifacts.events import CollectorStopped, LoaderBuilt
from efprof.artifacts.steps import StepRecord
from tests.recorder.light import record_both_ways, told
from tests.recorder.recording import PLAIN, record_here, stages
from tests.recorder.training import BATCH, Loader, error_of, make_loader, make_training, train_plainly, train_step

FEW, MANY = 12, 80
"""Steps: those of a short run are all in full, most of a long one are light."""

Batch = tuple[torch.Tensor, ...]
Optimizer = torch.optim.Optimizer


def whole(step: StepRecord) -> list[str]:
    """Its stages; one that goes on is named once."""
    return [stage for stage, _ in groupby(stages(step))]


class Trainer:
    """Makes one step at a time."""

    def __init__(self) -> None:
        self.model, self.optimizer = make_training()

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = error_of(self.model, inputs, targets)
        loss.backward()
        return loss.detach()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.backward(inputs, targets)
        self.optimizer.step()


def warm_up(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LinearLR(optimizer, total_iters=30)


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "LinearLR": warm_up,
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [warm_up(optimizer), warm_up(optimizer)], milestones=[7]
    ),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_moves_on_in_each_step_belongs_to_its_update(name: str, tmp_path: Path) -> None:
    def train() -> None:
        trainer = Trainer()
        schedule = SCHEDULES[name](trainer.optimizer)
        for batch in make_loader(FEW):
            loss = trainer.backward(*batch)
            trainer.optimizer.step()
            schedule.step(*[loss] * (name == "ReduceLROnPlateau"))

    steps = record_here(tmp_path, train).steps
    assert [whole(step) for step in steps] == [PLAIN] * FEW
    assert min(stages(step).count("optimizer") for step in steps) >= 2, "the schedule's share is seen"
    assert [step.reads for step in steps] == [[]] * FEW, "what it reads of its metric is torch's own business"


@pytest.mark.parametrize("is_fed", [True, False], ids=["fed by a loader", "fed by a list"])
def test_clipping_gradients_by_their_value_is_the_first_part_of_the_update(is_fed: bool) -> None:
    def train() -> None:
        trainer, loader = Trainer(), make_loader(MANY)
        for batch in loader if is_fed else list(loader):
            trainer.backward(*batch)
            torch.nn.utils.clip_grad_value_(trainer.model.parameters(), 0.01)
            trainer.optimizer.step()

    light, steps, num_light = record_both_ways(train)
    assert told(light) == told(steps)
    assert num_light > MANY / 3
    expected = [*PLAIN, "optimizer"] if is_fed else [*PLAIN[1:], "optimizer"]
    assert [stages(step) for step in steps[1:]] == [expected] * (MANY - 1)
    assert [step.micro_batches for step in steps] == [1] * MANY


def endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader


FEEDS: dict[str, tuple[Callable[[], Iterable[Batch]], int]] = {
    "chain": (lambda: itertools.chain(make_loader(MANY - 30), make_loader(30)), 2),
    "cycle": (lambda: itertools.islice(itertools.cycle(make_loader(MANY + 5)), MANY), 1),
    "a generator over it": (lambda: itertools.islice(endless(make_loader(MANY // 4)), MANY), 4),
}
"""Each with the number of times that a loader starts."""


@pytest.mark.parametrize("name", FEEDS)
def test_a_loader_whose_batches_are_passed_on_is_seen_at_each(name: str) -> None:
    make, num_starts = FEEDS[name]

    def train() -> None:
        trainer = Trainer()
        for batch in make():
            trainer.step(*batch)

    light, steps, num_light = record_both_ways(train)
    assert told(light) == told(steps)
    assert num_light > MANY / 3
    assert [whole(step) for step in steps] == [PLAIN] * MANY
    assert sum(stages(step).count("data") for step in steps) == MANY + num_starts
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH, 1)] * MANY
    assert [step.loader for step in steps[-30:]] == [int("chain" in name)] * 30


def test_batches_that_cycle_has_kept_are_fetched_no_more(tmp_path: Path) -> None:
    def train() -> None:
        trainer = Trainer()
        for batch in itertools.islice(itertools.cycle(make_loader(FEW)), MANY):
            trainer.step(*batch)

    recorded = record_here(tmp_path, train)
    assert recorded.events(CollectorStopped) == []
    assert sum(step.micro_batches for step in recorded.steps) == len(recorded.steps) == MANY
    fetched, kept = recorded.steps[:FEW], recorded.steps[FEW + 2 :]  # two steps later it is clear that nothing feeds it
    assert [(whole(step), step.samples) for step in fetched] == [(PLAIN, BATCH)] * FEW
    assert [(stages(step), step.samples) for step in kept] == [(PLAIN[1:], 0)] * (MANY - FEW - 2)


@pytest.mark.parametrize("num_steps", [FEW, MANY])
def test_a_step_that_one_loader_fed_lasts_when_another_ends_and_starts_again(num_steps: int) -> None:
    """As where few labelled batches go with many others."""

    def train() -> None:
        trainer, labelled = Trainer(), make_loader(7)
        batches = iter(labelled)
        for others, _ in make_loader(num_steps):
            try:
                inputs, targets = next(batches)
            except StopIteration:
                batches = iter(labelled)
                inputs, targets = next(batches)
            trainer.step(inputs + others, targets)

    light, steps, _ = record_both_ways(train)
    assert told(light) == told(steps)
    assert [(step.samples, step.micro_batches) for step in steps] == [(2 * BATCH, 1)] * num_steps
    assert [whole(step) for step in steps] == [PLAIN] * num_steps


def test_the_last_step_of_every_epoch_of_accelerate_is_whole_though_its_batch_was_fetched_in_the_one_before() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")

    def train() -> None:
        model, optimizer = make_training()
        model, optimizer, loader = accelerate.Accelerator(cpu=True).prepare(model, optimizer, make_loader(MANY))
        for _ in range(2):
            for batch in loader:
                train_step(model, optimizer, *batch)

    _, steps, num_light = record_both_ways(train)
    assert num_light > MANY / 3
    assert [step.samples for step in steps] == 2 * [2 * BATCH, *[BATCH] * (MANY - 2), 0]
    assert all("data" in stages(step) for step in (steps[MANY - 1], steps[-1]))


def test_clipping_that_another_tool_has_wrapped_is_recorded_under_whatever_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = torch.nn.utils.clip_grad_norm_

    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", wrapped)
    trainer = Trainer()

    def train_clipped() -> None:
        for inputs, targets in make_loader(4):
            trainer.backward(inputs, targets)
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            trainer.optimizer.step()

    steps = record_here(tmp_path, train_clipped).steps
    assert [stages(step)[-4:] for step in steps] == [["forward", "backward", "optimizer", "optimizer"]] * 4
    assert torch.nn.utils.clip_grad_norm_ is wrapped


def test_a_loader_that_could_not_be_made_is_not_told_of(tmp_path: Path) -> None:
    def train() -> None:
        with pytest.raises(ValueError, match="batch_size"):
            torch.utils.data.DataLoader([BATCH], batch_size=-1)  # type: ignore[arg-type]
        train_plainly(2)

    assert len(record_here(tmp_path, train).events(LoaderBuilt)) == 1
