"""Loops that feed themselves from iterators of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.steps import StepRecord
from tests.recorder.recording import PLAIN, UPDATE, record_here, stages
from tests.recorder.training import BATCH, Batch, evaluate, make_batch, make_training, train

NUM_STEPS = 8


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


class Pipelines(Batches):
    """As DALI's: a list, with a dictionary for each."""

    def __next__(self) -> Any:
        return [dict(zip(("data", "label"), super().__next__(), strict=True))]


class Loader:
    """As FFCV's: each epoch is an iterator of another class."""

    def __iter__(self) -> Iterator[Batch]:
        return Epoch()


class Epoch(Thread, Batches):
    def __init__(self) -> None:
        Thread.__init__(self)
        Batches.__init__(self)


class Nested(Batches):
    """Takes its batches from another one."""

    def __init__(self, inner: Batches | None = None) -> None:
        super().__init__()
        self.inner = inner

    def __next__(self) -> Batch:
        return next(self.inner) if self.inner else super().__next__()


class Prefetcher:
    """Has the next batch ready."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = batches
        self.preload()

    def preload(self) -> None:
        self.ready = next(self.batches, None)

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> Batch:
        if (batch := self.ready) is None:
            raise StopIteration
        self.preload()
        return batch


FEEDS: dict[str, Callable[[], Any]] = {
    "an iterator": Batches,
    "as of DALI": lambda: (tuple(batch[0].values()) for batch in Pipelines()),
    "as of FFCV": Loader,
    "an iterator of its own kind": lambda: Nested(Nested()),
    "a prefetcher": lambda: Prefetcher(Batches()),
}


def record(folder: Path, train_it: Callable[[], object]) -> list[StepRecord]:
    recorded = record_here(folder, train_it)
    assert recorded.events(CollectorStopped) == []
    return recorded.steps


@pytest.mark.parametrize("name", FEEDS)
def test_steps_begin_where_the_iterator_is_asked_for_a_batch(name: str, tmp_path: Path) -> None:
    def train_it() -> None:
        model, optimizer = make_training()
        for _ in range(2):
            train(model, FEEDS[name](), optimizer)
            evaluate(model, FEEDS[name]())

    steps = record(tmp_path, train_it)
    assert [stages(step) for step in steps] == [UPDATE] * 4 + [PLAIN] * (2 * NUM_STEPS - 4)
    assert [step.samples for step in steps] == [0] * 4 + [BATCH] * (2 * NUM_STEPS - 4)


def test_tensors_that_another_function_iterates_over_feed_nobody(tmp_path: Path) -> None:
    class Averages:
        """Of the parameters."""

        def __next__(self) -> torch.Tensor:
            return torch.zeros(3)

    own = Averages.__next__, Batches.__next__

    def update(averages: Averages) -> None:
        next(averages)

    def train_it() -> None:
        (model, optimizer), averages = make_training(), Averages()
        for batch in Batches():
            train(model, [batch], optimizer)
            update(averages)

    steps = record(tmp_path, train_it)
    assert [stages(step) for step in steps[4:]] == [PLAIN] * (NUM_STEPS - 4)
    assert (vars(Averages)["__next__"], vars(Batches)["__next__"]) == own
