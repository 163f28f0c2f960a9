"""Light steps tell of every kind of loop what full ones do: how many steps, their losses, their updates."""

import itertools
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import efprof
from efprof.artifacts.events import NonFiniteSeen, RecordingCost, TrainingRaised
from efprof.artifacts.steps import STEPS_FILE, StepRecord
from efprof.recorder.budget.sampling import BURST_STEPS, EARLY_STEPS, FIRST_STEPS, LightStep, Sampling
from efprof.recorder.session import current
from tests.recorder.conftest import Begin
from tests.recorder.light import record_both_ways, told
from tests.recorder.recording import HARDLY_ANY_IN_FULL, PLAIN, Recorded, open_session, record_here, stages
from tests.recorder.training import (
    error_of,
    make_loader,
    make_model,
    make_training,
    train,
    train_step,
    update_by_hand,
)

NUM_STEPS = 66


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train_plainly() -> None:
    model, optimizer = make_training()
    train(model, make_loader(NUM_STEPS), optimizer)


def make_optimizers_anew() -> None:
    """One for every epoch."""
    model, optimizers = make_model(), []
    for _ in range(NUM_STEPS // 6):
        optimizers.append(sgd(model))  # none has the id of another
        train(model, make_loader(6), optimizers[-1])


def accumulate() -> None:
    model, optimizer = make_training()
    for number, batch in enumerate(make_loader(2 * NUM_STEPS)):
        error_of(model, *batch).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def train_without_a_loader() -> None:
    model, optimizer = make_training()
    for _ in range(NUM_STEPS):
        train_step(model, optimizer, torch.randn(4, 3), torch.zeros(4, 1))


def scale_losses() -> None:
    model, scaler = make_model(), torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = sgd(model)
    for number, batch in enumerate(make_loader(NUM_STEPS)):
        optimizer.zero_grad()
        factor = math.inf if number in (30, 51) else 1.0
        scaler.scale(error_of(model, *batch) * factor).backward()
        scaler.step(optimizer)
        scaler.update()


def go_back_by_closures() -> None:
    model = make_model()
    exact = {"tolerance_grad": 0.0, "tolerance_change": 0.0}
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3, history_size=5, **exact)
    for inputs, targets in make_loader(NUM_STEPS):

        def closure(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets) -> torch.Tensor:
            optimizer.zero_grad()
            error = error_of(model, inputs, targets)
            error.backward()
            return error

        optimizer.step(closure)


def descend_by_hand() -> None:
    model = make_model()
    for _ in range(NUM_STEPS):
        error_of(model, torch.randn(4, 3), torch.zeros(4, 1)).backward()
        update_by_hand(model)


def mark_steps() -> None:
    model, optimizer = make_training()
    for batch in make_loader(NUM_STEPS):
        with efprof.stage("backward"):
            error_of(model, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        efprof.step()


def train_another_now_and_then() -> None:
    """As a generator after every third step of its critic, and a pass of its own."""
    model, often = make_training()
    rarely = sgd(model)
    for number, batch in enumerate(make_loader(NUM_STEPS)):
        for optimizer in (often, rarely)[: 1 + (number % 3 == 2)]:
            error_of(model, *batch).backward()
            optimizer.step()
            optimizer.zero_grad()


def mark_several_updates() -> None:
    model, optimizer = make_training()
    efprof.step()
    for batch in make_loader(NUM_STEPS):
        for _ in range(2):
            error_of(model, *batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        efprof.step()


def go_back_within_a_pass() -> None:
    """As a reentrant checkpoint does; the slope of the inputs is asked for beside."""
    model, optimizer = make_training()
    for inputs, targets in make_loader(NUM_STEPS):
        optimizer.zero_grad()
        (slope,) = torch.autograd.grad(model(inputs.requires_grad_()).sum(), inputs, create_graph=True)
        hidden = checkpoint(model, inputs, use_reentrant=True)
        ((hidden - targets).square().mean() + slope.square().mean()).backward()
        optimizer.step()


def give_arguments_by_place() -> None:
    model, optimizer = make_training()
    for batch in make_loader(NUM_STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(error_of(model, *batch), None, None, False, None, list(model.parameters()))
        optimizer.step()


LOOPS = (
    train_plainly, make_optimizers_anew, accumulate, train_without_a_loader, scale_losses, go_back_by_closures,
    descend_by_hand, go_back_within_a_pass, give_arguments_by_place, mark_steps, train_another_now_and_then,
    mark_several_updates,
)  # fmt: skip


@pytest.mark.parametrize("train", LOOPS, ids=lambda train: train.__name__)
def test_light_steps_tell_what_full_ones_do(train: Callable[[], None]) -> None:
    light, full, num_light = record_both_ways(train)
    assert num_light > 10
    assert told(light) == told(full)


def is_light() -> bool:
    """Whether the step that runs is recorded as one; by turns with bursts, whose places depend on the clock."""
    return current.session is not None and current.session.loop.light.is_on


def record_a_bad_light_step(folder: Path) -> tuple[int, NonFiniteSeen]:
    """Its number, and what is told of it."""

    def train() -> None:
        model, optimizer = make_training()
        for number, batch in enumerate(make_loader(NUM_STEPS)):
            optimizer.zero_grad()
            is_bad = number > 40 and not bad and is_light()
            bad.extend([number] * is_bad)
            (error_of(model, *batch) * (math.nan if is_bad else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()

    bad: list[int] = []
    recorded = record_here(folder, train, overhead=HARDLY_ANY_IN_FULL)
    (seen,) = recorded.events(NonFiniteSeen)
    assert not recorded.steps[bad[0]].is_full
    return bad[0], seen


def test_no_loss_that_is_not_finite_is_missed(tmp_path: Path) -> None:
    bad, seen = record_a_bad_light_step(tmp_path)
    assert (seen.step, seen.what, seen.value) == (bad, "loss", "nan")
    assert seen.site is not None


def test_the_operation_that_makes_a_loss_not_finite_in_a_light_step_is_named(tmp_path: Path) -> None:
    _, seen = record_a_bad_light_step(tmp_path)
    assert [suspect.node for suspect in seen.suspects] == ["MulBackward0"]


def test_light_steps_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    steps = record_here(tmp_path, train_plainly, overhead=HARDLY_ANY_IN_FULL).steps
    pairs = [(one, after) for one, after in itertools.pairwise(steps) if not (one.is_full or after.is_full)]
    assert pairs
    for one, after in pairs:
        assert abs(after.started_ns - one.started_ns - one.total_us * 1000) < 1e6


def test_the_first_steps_and_bursts_are_recorded_in_full(tmp_path: Path) -> None:
    steps = record_here(tmp_path, train_plainly, overhead=HARDLY_ANY_IN_FULL).steps
    assert all(step.is_full for step in steps[:FIRST_STEPS])
    bursts = [
        len(list(group)) for is_full, group in itertools.groupby(steps[FIRST_STEPS:], lambda s: s.is_full) if is_full
    ]
    assert bursts
    assert {BURST_STEPS} >= set(bursts[:-1])
    full = [step for step in steps[1:] if step.is_full]
    assert [stages(step) for step in full] == [PLAIN] * len(full)
    assert all(len(step.memory) == 5 for step in full)


def test_the_error_of_a_light_step_names_its_stage(tmp_path: Path) -> None:
    def train() -> None:
        model, optimizer = make_training()
        for number, (inputs, targets) in enumerate(make_loader(NUM_STEPS)):
            optimizer.zero_grad()
            bad.extend([number] * (number > 40 and is_light()))
            train_step(model, optimizer, inputs[:, : 2 if bad else 3], targets)

    bad: list[int] = []
    session = open_session(tmp_path, overhead=HARDLY_ANY_IN_FULL)
    session.start()
    with pytest.raises(RuntimeError) as raised:
        train()
    session.endings.note_exit(1, raised.value)
    session.end()
    (error,) = Recorded(folder=tmp_path).events(TrainingRaised)
    assert (error.step, error.stage) == (bad[0], "forward")


def test_what_recording_cost_is_told_at_the_end(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, train_plainly, overhead=HARDLY_ANY_IN_FULL)
    (cost,) = recorded.events(RecordingCost)
    assert cost.num_full_steps == sum(step.is_full for step in recorded.steps)
    assert cost.seconds["first steps"] > 0


def test_a_process_that_is_killed_loses_light_steps_alone(begin: Begin, tmp_path: Path) -> None:
    child = begin(
        """
import os, signal, torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(100):
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number == 80:
        os.kill(os.getpid(), signal.SIGKILL)
""",
        overhead=HARDLY_ANY_IN_FULL,
    )
    assert child.wait() == -signal.SIGKILL
    steps = Recorded(folder=tmp_path / "run").steps
    assert [step.step for step in steps] == list(range(len(steps)))
    assert len(steps) > FIRST_STEPS
    assert b'"light"' in (tmp_path / "run" / "rank0" / STEPS_FILE).read_bytes()


KINDS = ("plain", "accumulated", "by two", "by another", "evaluated", "failed")


def run_step(kind: str, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], batches: Iterator) -> None:  # type: ignore[type-arg]
    for _ in range(2 if kind == "accumulated" else 1):
        inputs, targets = next(batches)
        if kind == "failed":
            with pytest.raises(RuntimeError):
                model(inputs[:, :2])
        error_of(model, inputs, targets).backward()
    if kind == "by another":
        optimizers[0] = sgd(model)
    for optimizer in optimizers[: 1 + (kind == "by two")]:
        optimizer.step()
        optimizer.zero_grad()
    if kind == "evaluated":
        model.eval()
        with torch.no_grad():
            error_of(model, inputs, targets)
        model.train()


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12)), min_size=1, max_size=8))
def test_whatever_the_steps_are_none_is_lost(program: list[tuple[str, int]]) -> None:
    kinds = ["plain"] * 28 + [kind for kind, count in program for _ in range(count)]

    def train_in_turns() -> None:
        torch.manual_seed(1)
        model = make_model()
        optimizers = [sgd(model) for _ in range(2)]
        batches = iter(make_loader(2 * len(kinds)))
        for kind in kinds:
            run_step(kind, model, optimizers, batches)

    light, full, _ = record_both_ways(train_in_turns)
    assert losses(light) == losses(full)
    assert sum(step.micro_batches for step in light) == sum(step.micro_batches for step in full)


def losses(steps: list[StepRecord]) -> list[object]:
    return [step.loss for step in steps]


@settings(max_examples=30, deadline=None)
@given(st.floats(0.002, 0.1), st.floats(2e5, 5e6), st.floats(1.2e6, 5e7))
def test_bursts_cost_no_more_than_their_share(share: float, cost_ns: float, length_ns: float) -> None:
    """Of made steps: a light one of 10 us, a full one of `cost_ns` more."""
    sampling, spent, total, number = Sampling(share), 0.0, 0.0, 0
    while number < 6000:
        is_full = sampling.is_full(number)
        if is_full:
            sampling.note_full(number, round(length_ns + cost_ns), round(cost_ns))
        else:
            sampling.note_light([LightStep(number, round(length_ns), 10_000, is_usual=True)])
        if number >= EARLY_STEPS:
            cost = cost_ns if is_full else 10_000
            spent, total = spent + cost, total + length_ns + cost
        number += 1
    least = 10_000 * 6000 + 0.125 * share * total  # where light steps alone cost more than their share
    assert spent <= 1.01 * max(share / 2 * total, least) + 8 * BURST_STEPS * cost_ns
