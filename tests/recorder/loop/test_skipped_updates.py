"""Batches whose gradients the program throws away, and the many reasons to clear gradients that throw nothing away."""

import math
from collections.abc import Callable, Container
from pathlib import Path

import pytest
import torch

from efprof.artifacts.steps import StepRecord
from efprof.recorder.loop.step_ends import MIN_STEPS_EACH, SkippedUpdates
from tests.recorder.light import record_both_ways
from tests.recorder.recording import PLAIN, record_here, stages
from tests.recorder.training import BATCH, error_of, make_loader, make_model, make_training


def train_but(skipped: Container[int], num_steps: int = 12, micro_batches: int = 1, loads: bool = True) -> None:
    """Clear the gradients instead of applying them, as where their norm is not finite."""
    model, optimizer = make_training()
    batches = make_loader(num_steps * micro_batches)
    for number, (inputs, targets) in enumerate(batches if loads else list(batches)):
        step, micro_batch = divmod(number, micro_batches)
        error_of(model, inputs * (math.nan if step in skipped else 1), targets).backward()
        if micro_batch < micro_batches - 1:
            continue
        if step not in skipped:
            optimizer.step()
        optimizer.zero_grad()


LONG = 60


def train_cleared_late(skipped: Container[int], place: str, num_steps: int = 12, loads: bool = True) -> None:
    """What a batch left is cleared in the round of the next one: at its "top", or just before its "backward"."""
    model, optimizer = make_training()
    made = [(torch.randn(BATCH, 3), torch.randn(BATCH, 1))] * num_steps
    for number, (inputs, targets) in enumerate(make_loader(num_steps) if loads else made):
        if place == "top":
            optimizer.zero_grad()
        error = error_of(model, inputs * (math.nan if number in skipped else 1), targets)
        if place == "backward":
            optimizer.zero_grad()
        error.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        if number in skipped or not norm.isfinite():
            continue
        optimizer.step()


LOADED_OR_MADE = pytest.mark.parametrize("loads", [True, False], ids=["loaded", "made"])


def skipped_in(steps: list[StepRecord]) -> list[int]:
    return [step.step for step in steps if step.is_skipped]


@LOADED_OR_MADE
def test_a_batch_that_the_program_throws_away_is_a_step_of_its_own(loads: bool, tmp_path: Path) -> None:
    thrown = [3, 11] if loads else [3, 9]  # without a loader nothing shows that the last one is over
    steps = record_here(tmp_path, lambda: train_but(thrown, loads=loads)).steps
    assert skipped_in(steps) == thrown
    assert [step.step for step in steps if step.loss == "nan"] == thrown
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH * loads, 1)] * 12
    assert stages(steps[3]) == ["data", "forward", "backward"][not loads :]


def test_in_light_steps_its_loss_is_told_with_the_next_update() -> None:
    light, full, num_light = record_both_ways(lambda: train_but({45}, LONG))
    assert num_light > LONG / 3
    assert skipped_in(full) == [45]
    (step,) = (step for step in light if step.loss == "nan")
    assert step.step == 45
    assert sum(step.micro_batches for step in light) == LONG


@LOADED_OR_MADE
@pytest.mark.parametrize("place", ["top", "backward"])
def test_so_is_one_whose_gradients_are_cleared_when_the_next_one_has_come(
    place: str, loads: bool, tmp_path: Path
) -> None:
    steps = record_here(tmp_path, lambda: train_cleared_late({3, 9}, place, loads=loads)).steps
    assert skipped_in(steps) == [3, 9]
    assert [step.step for step in steps if step.loss == "nan"] == [3, 9]
    assert [step.micro_batches for step in steps] == [1] * 12
    assert [step.samples for step in steps] == [BATCH * loads] * 12
    assert stages(steps[3]) == PLAIN[not loads :]
    assert stages(steps[4]) == stages(steps[5])


def test_the_next_batch_takes_its_times_and_memory_along(tmp_path: Path) -> None:
    steps = record_here(tmp_path, lambda: train_cleared_late({3}, "backward")).steps
    skipped, following = steps[3:5]
    assert following.started_ns >= skipped.started_ns + skipped.spans[-1].end_us * 1000
    assert all(0 <= span.start_us <= span.end_us <= following.total_us for span in following.spans)
    assert [reading.boundary for reading in following.memory] == [reading.boundary for reading in steps[5].memory]
    assert skipped.loader == following.loader is not None


def test_an_error_that_the_program_catches_leaves_a_step_of_its_own(tmp_path: Path) -> None:
    def train() -> None:
        model, optimizer = make_training()
        for number, (inputs, targets) in enumerate(make_loader(12)):
            try:
                error_of(model, inputs, targets).backward()
                if number == 5:
                    raise torch.OutOfMemoryError("out of memory")
            except torch.OutOfMemoryError:
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()

    steps = record_here(tmp_path, train).steps
    assert skipped_in(steps) == [5]
    assert [step.samples for step in steps] == [BATCH] * 12


def test_accumulated_batches_are_thrown_away_together(tmp_path: Path) -> None:
    steps = record_here(tmp_path, lambda: train_but({2}, num_steps=6, micro_batches=4)).steps
    assert skipped_in(steps) == [2]
    assert [step.micro_batches for step in steps] == [4] * 6


def gather_clipped_gradients() -> None:
    """Of single batches, more or fewer for each update, as in differentially private training."""
    model, optimizer = make_training()
    batches = iter(make_loader(64))
    for number in (3, 3, 5, 2, 1, 4, 1, 2):
        sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for _ in range(number):
            error_of(model, *next(batches)).backward()
            for total, parameter in zip(sums, model.parameters(), strict=True):
                total += parameter.grad.clamp(-1, 1)  # type: ignore[union-attr]
            optimizer.zero_grad()
        for total, parameter in zip(sums, model.parameters(), strict=True):
            parameter.grad = total
        optimizer.step()
        optimizer.zero_grad()


def sharpen() -> None:
    """SAM: the first gradients only move the weights to where the second are taken; here with zero_grad in between."""
    (model, optimizer), inputs = make_training(), torch.randn(BATCH, 3)
    for _ in range(12):
        for rho in (0.05, -0.05):
            model(inputs).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=rho)  # type: ignore[arg-type]
            if rho > 0:
                optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()


def attack() -> None:
    """Adversarial training with a random number of steps of the adversary, without a loader."""
    (model, optimizer), inputs = make_training(), torch.randn(BATCH, 3)
    for number in (0, 0, 3, 1, 2, 5, 1, 4):
        moved = inputs.clone().requires_grad_()
        for _ in range(number):
            model(moved).square().mean().backward()
            moved = (moved + moved.grad.sign()).detach().requires_grad_()  # type: ignore[union-attr]
            optimizer.zero_grad()
        model(moved).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def look_at_saliency() -> None:
    """From some step on, a backward pass at the same line tells what an evaluated batch's output depends on."""
    model, seen = make_model(), make_loader(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def explain(output: torch.Tensor) -> None:
        output.backward()

    for number, batch in enumerate(make_loader(6)):
        model.eval()
        for inputs, _ in seen if number > 2 else ():
            explain(model(inputs).sum())
            optimizer.zero_grad()
        model.train()
        explain(error_of(model, *batch))
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("program", [gather_clipped_gradients, sharpen, attack, look_at_saliency])
def test_gradients_that_are_cleared_for_other_reasons_divide_no_step(
    program: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    steps = record_here(tmp_path / "looking", program).steps
    torch.manual_seed(0)
    monkeypatch.setattr(SkippedUpdates, "is_skipped", lambda *_: False)
    expected = record_here(tmp_path / "blind", program).steps
    assert len(steps) > 5
    assert [(step.micro_batches, step.is_skipped) for step in steps] == [
        (step.micro_batches, False) for step in expected
    ]


def test_a_program_that_clears_gradients_all_the_time_has_other_reasons(tmp_path: Path) -> None:
    steps = record_here(tmp_path, lambda: train_but(range(1, 40, 2), 40)).steps
    assert len(skipped_in(steps)) <= len(steps) / MIN_STEPS_EACH + 1
    assert sum(step.micro_batches for step in steps) == 39  # the last one is still open
