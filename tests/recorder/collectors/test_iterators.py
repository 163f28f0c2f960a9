"""Loops that feed themselves from iterators of their own."""

import functools
import io
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.steps import StepRecord
from tests.recorder.recording import PLAIN, UPDATE, record_here, stages
from tests.recorder.training import BATCH, Batch, error_of, evaluate, make_batch, make_training, train_step

NUM_STEPS = 8

LONG = 80


class Batches:
    """An iterator."""

    def __init__(self, num_batches: int = NUM_STEPS) -> None:
        self.num_left = num_batches

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Batch:
        if not self.num_left:
            raise StopIteration
        self.num_left -= 1
        return make_batch()


class Yielding:
    """What iterates by a generator function."""

    def __init__(self) -> None:
        self.num_closed = 0

    def __iter__(self) -> Iterator[Batch]:
        try:
            for _ in range(4):
                yield make_batch()
        finally:
            self.num_closed += 1


class Trainer:
    """Makes one step at a time."""

    def __init__(self) -> None:
        self.model, self.optimizer = make_training()
        self.batches = Batches()

    def step(self, *batch: torch.Tensor) -> None:
        train_step(self.model, self.optimizer, *batch)

    def fit(self, batches: Iterable[Any] | None = None) -> None:
        for batch in self.batches if batches is None else batches:
            self.step(*batch)


def by_name() -> None:
    trainer, batches = Trainer(), Batches()
    for batch in batches:
        trainer.step(*batch)


def asked_for() -> None:
    trainer, batches = Trainer(), Batches()
    for _ in range(NUM_STEPS):
        trainer.step(*next(batches))


FED: dict[str, Callable[[], object]] = {
    "by name": by_name,
    "by attribute": lambda: Trainer().fit(),
    "by class": lambda: Trainer().fit(Batches()),
    "enumerated": lambda: Trainer().fit(batch for _, batch in enumerate(Batches(), start=1)),
    "sliced": lambda: Trainer().fit(itertools.islice(iter(Batches(2 * NUM_STEPS)), NUM_STEPS)),
    "asked for": asked_for,
    "chained": lambda: Trainer().fit(itertools.chain(Batches(6), Batches(NUM_STEPS - 6))),
    "cycled": lambda: Trainer().fit(itertools.islice(itertools.cycle(Batches(100)), NUM_STEPS)),
    "with a progress bar": lambda: Trainer().fit(progress_bar()(Batches())),
}


def progress_bar() -> Callable[..., Any]:
    """tqdm's, without its thread, and with nobody to see it."""
    tqdm = pytest.importorskip("tqdm", reason="needs tqdm").tqdm
    return functools.partial(type("Bar", (tqdm,), {"monitor_interval": 0}), file=io.StringIO())


def in_an_outer_loop() -> None:
    trainer, batches = Trainer(), Batches()
    for inputs, targets in batches:
        for part in (slice(0, 2), slice(2, 4)):
            (error_of(trainer.model, inputs[part], targets[part]) / 2).backward()
        trainer.optimizer.step()


@pytest.fixture
def record(tmp_path: Path) -> Callable[[Callable[[], object]], list[StepRecord]]:
    def record_whole(train: Callable[[], object]) -> list[StepRecord]:
        recorded = record_here(tmp_path, train)
        assert recorded.events(CollectorStopped) == []
        return recorded.steps

    return record_whole


Record = Callable[[Callable[[], object]], list[StepRecord]]


@pytest.mark.parametrize("name", FED)
def test_steps_begin_where_the_iterator_is_asked_for_a_batch(name: str, record: Record) -> None:
    steps = record(FED[name])
    assert [stages(step) for step in steps] == [UPDATE] * 4 + [PLAIN] * (NUM_STEPS - 4)
    assert [step.samples for step in steps] == [0] * 4 + [BATCH] * (NUM_STEPS - 4)


def test_an_inner_loop_over_parts_of_a_batch_is_passed_over(record: Record) -> None:
    steps = record(in_an_outer_loop)
    assert [step.micro_batches for step in steps] == [2] * NUM_STEPS
    assert stages(steps[-1]) == ["data", *["forward", "backward"] * 2, "optimizer"]


def test_a_generator_function_is_seen_from_its_next_epoch_on(record: Record) -> None:
    data, trainer = Yielding(), Trainer()
    steps = record(lambda: [trainer.fit(data) for _ in range(3)])
    assert len(steps) == 12
    assert [stages(step) for step in steps[5:]] == [PLAIN] * 7, "the first item shows that it is a batch"
    assert {step.samples for step in steps[5:]} == {BATCH}
    assert data.num_closed == 3


def test_a_generator_that_the_loop_leaves_early_is_closed(record: Record) -> None:
    data = Yielding()

    def train() -> None:
        trainer = Trainer()
        for _ in range(4):
            for batch in data:
                trainer.step(*batch)
                if data.num_closed:
                    break

    record(train)
    assert data.num_closed == 4


def made() -> Iterator[Batch]:
    for _ in range(LONG):
        yield make_batch()


def test_what_a_generator_that_runs_already_takes_is_no_stage(record: Record) -> None:
    steps = record(lambda: Trainer().fit(map(operator.itemgetter(1), enumerate(made()))))
    assert [stages(step) for step in steps] == [UPDATE] * LONG
    assert {(step.samples, step.loader, step.micro_batches) for step in steps} == {(0, None, 1)}


def test_an_iterator_is_seen_that_a_generator_takes_from(record: Record) -> None:
    steps = record(lambda: Trainer().fit(batch for batch in Batches()))
    assert [stages(step) for step in steps] == [UPDATE] * 4 + [PLAIN] * (NUM_STEPS - 4)


def test_tensors_that_another_function_iterates_over_feed_nobody(record: Record) -> None:
    class Averages:
        """Of the parameters."""

        def __next__(self) -> torch.Tensor:
            return torch.zeros(3)

    of_averages, of_batches = Averages.__next__, Batches.__next__

    def update(averages: Averages) -> None:
        for _ in range(2):
            next(averages)

    def train() -> None:
        trainer, averages, batches = Trainer(), Averages(), Batches()
        for batch in batches:
            trainer.step(*batch)
            update(averages)

    steps = record(train)
    assert [stages(step) for step in steps[4:]] == [PLAIN] * (NUM_STEPS - 4)
    assert vars(Averages)["__next__"] is of_averages
    assert vars(Batches)["__next__"] is of_batches


def test_an_iterator_that_feeds_several_steps_at_a_time_is_left_alone_again(record: Record) -> None:
    advance = Batches.__next__
    seen = []

    def train() -> None:
        trainer, batches = Trainer(), Batches(6)
        for batch in batches:
            for _ in range(3):
                trainer.step(*batch)
            seen.append(vars(Batches)["__next__"] is advance)

    steps = record(train)
    assert len(steps) == 18
    assert seen[-2:] == [True, True]
    assert [stages(step) for step in steps[-6:]] == [UPDATE] * 6


def test_an_error_in_the_iterator_reaches_the_program(record: Record) -> None:
    class Failing(Batches):
        def __next__(self) -> Batch:
            if self.num_left == 1:
                raise ValueError("no such file")
            return super().__next__()

    def train() -> None:
        trainer, batches = Trainer(), Failing()
        for _ in range(NUM_STEPS - 1):
            trainer.step(*next(batches))
        with pytest.raises(ValueError, match="no such file"):
            next(batches)

    assert len(record(train)) == NUM_STEPS - 1


def test_an_evaluation_on_the_same_class_belongs_to_no_step(record: Record) -> None:
    def train() -> None:
        trainer = Trainer()
        for _ in range(2):
            trainer.fit(Batches())
            evaluate(trainer.model, Batches(5))

    steps = record(train)
    assert [step.samples for step in steps[4:]] == [BATCH] * (2 * NUM_STEPS - 4)
