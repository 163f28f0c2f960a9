"""Several threads that train: one after the other, at the same time, or for one another."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, OtherThreadTrained
from efprof.artifacts.steps import StepRecord
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from tests.recorder.conftest import Begin
from tests.recorder.recording import UPDATE, Recorded, record_here, stages
from tests.recorder.training import BATCH, error_of, make_loader, make_model, make_training, train_plainly

NUM_UPDATES = 40
"""More than are in full at the start."""


def make_step(model: torch.nn.Module | None = None) -> tuple[Callable[[], None], list[float]]:
    """A function that makes one whole training step of a model, and the losses it has had."""
    model = model or make_model()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), list[float]()

    def step() -> None:
        inputs = torch.randn(BATCH, 3)
        optimizer.zero_grad()
        loss = error_of(model, inputs, inputs.sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())

    return step, losses


def has_spans_in_order(step: StepRecord) -> bool:
    instants = [instant for span in step.spans for instant in (span.start_us, span.end_us)]
    return instants == sorted(instants) and instants[-1] <= step.total_us


def at_once(*functions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def updates_elsewhere(recorded: Recorded) -> int | None:
    return recorded.events(OtherThreadTrained)[-1].num_updates


def test_a_loader_that_another_thread_reads_joins_no_steps(tmp_path: Path) -> None:
    def train() -> None:
        step, _ = make_step()
        for _ in range(2):
            loader, batches = iter(make_loader(5)), queue.Queue[object]()
            at_once(lambda loader=loader, batches=batches: [batches.put(batch) for batch in loader])
            for _ in range(batches.qsize()):
                step()

    steps = record_here(tmp_path, train).steps
    assert [(step.micro_batches, stages(step)[-3:]) for step in steps] == [(1, UPDATE)] * 10


def test_training_goes_on_in_our_thread_once_another_one_is_over(tmp_path: Path) -> None:
    def train() -> None:
        at_once(train_plainly)
        train_plainly(3)

    assert len(record_here(tmp_path, train).steps) == 9


def test_what_another_thread_trains_between_steps_of_ours_is_not_mixed_in(tmp_path: Path) -> None:
    def train() -> None:
        train_plainly(2)
        at_once(train_plainly)
        train_plainly(2)

    assert [step.samples for step in record_here(tmp_path, train).steps] == [BATCH] * 4


@pytest.mark.parametrize("is_daemon", [True, False])
def test_a_thread_for_every_step_trains_to_its_end_under_the_windows_of_a_recording(
    is_daemon: bool, begin: Begin
) -> None:
    program = f"""
import threading, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
for _ in range(40):
    thread = threading.Thread(target=step, daemon={is_daemon})
    thread.start()
    thread.join()
"""
    child = begin(program, trace_steps=((5, 7), (20, 21), (39, 60)))
    assert child.wait() == 0, child.errors
    recorded = Recorded(folder=child.folder)
    assert [record.micro_batches for record in recorded.steps] == [1] * 40
    assert [record.loss is None for record in recorded.steps[1:]] == [False] * 39


def make_lockstep(wait: Callable[[], object], optimizer_of: Callable[[], torch.optim.Optimizer] | None = None) -> None:
    """Train with every call beside another thread's, which waits at the same places."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if optimizer_of is None else optimizer_of()
    for _ in range(NUM_UPDATES):
        wait()
        inputs = torch.randn(BATCH, 3)
        loss = error_of(model, inputs, inputs.sum(1, keepdim=True))
        wait()
        loss.backward()  # type: ignore[no-untyped-call]
        wait()
        optimizer.step()


def test_of_two_threads_that_train_at_once_one_is_recorded_and_the_other_one_is_told_of(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)
    recorded = record_here(tmp_path, lambda: at_once(*[lambda: make_lockstep(barrier.wait)] * 2))
    assert [stages(step) for step in recorded.steps[1:]] == [UPDATE] * (NUM_UPDATES - 1)
    assert updates_elsewhere(recorded) == NUM_UPDATES
    (warning,) = [warning for warning in warnings_of(open_run(tmp_path)) if "thread" in warning]
    assert "took part of the machine's time" in warning


def test_threads_that_share_an_optimizer_and_train_at_once_are_not_mixed(tmp_path: Path) -> None:
    barrier, model = threading.Barrier(2), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorded = record_here(tmp_path, lambda: at_once(*[lambda: make_lockstep(barrier.wait, lambda: optimizer)] * 2))
    assert [step.micro_batches for step in recorded.steps[1:]] == [1] * (NUM_UPDATES - 1)
    assert updates_elsewhere(recorded) == NUM_UPDATES


def test_another_training_that_goes_on_after_the_recorded_one_is_not_taken_for_it(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)

    def train() -> None:
        step, _ = make_step()
        step()
        make_lockstep(barrier.wait)

    def train_longer(recorded: threading.Thread) -> None:
        make_lockstep(barrier.wait)
        recorded.join()
        step, _ = make_step()
        for _ in range(5):
            step()

    def train_both() -> None:
        first = threading.Thread(target=train)
        first.start()
        at_once(lambda: train_longer(first))

    recorded = record_here(tmp_path, train_both)
    assert len(recorded.steps) == 1 + NUM_UPDATES
    assert updates_elsewhere(recorded) == NUM_UPDATES + 5


def test_of_two_threads_that_train_by_turns_one_is_recorded_and_the_other_one_is_told_of(tmp_path: Path) -> None:
    step, losses = make_step()

    def train() -> None:
        with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
            for number in range(NUM_UPDATES):
                (second if number % 2 else first).submit(step).result()

    recorded = record_here(tmp_path, train)
    assert [stages(record) for record in recorded.steps[1:]] == [UPDATE] * (NUM_UPDATES // 2 - 1)
    assert [record.loss for record in recorded.steps[1:]] == pytest.approx(losses[2::2])
    assert updates_elsewhere(recorded) == NUM_UPDATES // 2
    assert not recorded.events(CollectorStopped)


def test_no_step_is_light_once_another_thread_has_worked_for_one(tmp_path: Path) -> None:
    step, _ = make_step()

    def train() -> None:
        for number in range(NUM_UPDATES):
            if number % 3 == 0:
                at_once(torch.ones(1, requires_grad=True).sum().backward)
            step()

    assert sum(one.micro_batches for one in record_here(tmp_path, train).steps[1:]) == NUM_UPDATES - 1 + 13


def test_a_thread_that_works_for_the_step_is_no_training_of_its_own(tmp_path: Path) -> None:
    model, optimizer = make_training()

    def work() -> None:
        inputs = torch.randn(BATCH, 3)
        error_of(model, inputs, inputs.sum(1, keepdim=True)).backward()  # type: ignore[no-untyped-call]

    def train() -> None:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(NUM_UPDATES):
                optimizer.zero_grad()
                for done in [pool.submit(work) for _ in range(2)]:
                    done.result()
                optimizer.step()

    recorded = record_here(tmp_path, train)
    assert [step.micro_batches for step in recorded.steps[1:]] == [2] * (NUM_UPDATES - 1)
    assert all(set(stages(step)) == {"backward", "optimizer"} for step in recorded.steps[1:])
    assert all(map(has_spans_in_order, recorded.steps))
    assert recorded.events(OtherThreadTrained) == []
