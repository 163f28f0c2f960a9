"""Training with a gradient scaler, as it is recorded on the CPU."""

import gc
import math
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, NonFiniteSeen, ScalerBuilt
from efprof.recorder.numbers.numbers import MAX_SKIPPED
from tests.recorder.recording import Recorded, line_of, record_here, stages
from tests.recorder.training import error_of, make_loader, make_training, make_weight

SGD = torch.optim.SGD


def scaled(factors: Iterable[float], *, scale: float = 16.0, growth: int = 1000, **settings: Any) -> Callable[[], None]:
    """One step per factor, which is the loss and its gradient."""

    def train() -> None:
        weight = torch.ones(1, requires_grad=True)
        optimizer = SGD([weight], lr=0.0, **settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth)
        for factor in factors:
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    return train


TOO_LARGE = 2.0**127
"""A scale by which gradients of 4 overflow as long as it is above 2**125: twice."""


def make_scaled() -> tuple[torch.Tensor, torch.optim.Optimizer, torch.amp.GradScaler]:
    """A weight of one, an optimizer that leaves it so, and a scaler."""
    return *make_weight(), torch.amp.GradScaler("cpu", init_scale=16.0)


both_kinds = pytest.mark.parametrize("settings", [{}, {"fused": True}], ids=["plain", "fused"])
"""A fused optimizer is given the scale, and divides the gradients by it as it applies them."""


def recorded_steps(recorded: Recorded) -> list[tuple[object, ...]]:
    assert recorded.events(CollectorStopped) == []
    return [(step.gradient_norm, step.scaler_scale, step.is_skipped) for step in recorded.steps]


@both_kinds
def test_a_step_that_the_scaler_skips_is_one_step_and_marked(tmp_path: Path, settings: dict[str, bool]) -> None:
    recorded = record_here(tmp_path, scaled([2.0, math.inf, 2.0], **settings))
    assert [step[1:] for step in recorded_steps(recorded)] == [(16.0, False), (8.0, True), (8.0, False)]
    assert (recorded.steps[0].gradient_norm, recorded.steps[0].loss) == (2.0, 2.0), "as before scaling"


def test_a_skipped_step_has_its_bad_gradients_counted(tmp_path: Path) -> None:
    held_back = record_here(tmp_path, scaled([2.0, math.inf])).steps[1]
    assert (held_back.num_gradients, held_back.num_inf) == (1, 1)
    assert held_back.memory[-1].boundary == "post_optimizer_step"


@both_kinds
def test_the_overflow_by_which_a_scaler_finds_its_scale_is_not_told_of_as_a_fault(
    tmp_path: Path, settings: dict[str, bool]
) -> None:
    recorded = record_here(tmp_path, scaled([4.0] * 6, scale=TOO_LARGE, **settings))
    assert [step.is_skipped for step in recorded.steps] == [True, True, False, False, False, False]
    assert (recorded.events(NonFiniteSeen), recorded.events(CollectorStopped)) == ([], [])


def test_a_bad_loss_is_told_of_after_the_scaler_has_found_its_scale(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, scaled([*[4.0] * 30, math.nan], scale=TOO_LARGE))
    assert [(event.step, event.what) for event in recorded.events(NonFiniteSeen)] == [(30, "loss")]


def test_overflows_of_a_scale_that_grows_again_are_not_told_of_either(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, scaled([4.0] * 80, scale=TOO_LARGE, growth=2))
    held_back = [step.gradient_norm for step in recorded.steps if step.is_skipped]
    assert len(held_back) > 20
    assert held_back == ["inf"] * len(held_back)
    assert recorded.events(NonFiniteSeen) == []


def without_a_scale(num_steps: int, first_bad: int) -> Callable[[], None]:
    """From a step on, the loss is finite and its gradient is not, whatever the scale."""

    def train() -> None:
        weight, optimizer, scaler = make_scaled()
        for number in range(num_steps):
            optimizer.zero_grad()
            scaled = scaler.scale((weight * (number < first_bad)).sqrt().sum())
            scaled.backward()
            scaler.step(optimizer)
            scaler.update()

    return train


@pytest.mark.parametrize("first_bad", [0, 30])
def test_a_scaler_that_finds_no_scale_is_told_of(tmp_path: Path, first_bad: int) -> None:
    recorded = record_here(tmp_path, without_a_scale(first_bad + 40, first_bad))
    (seen,) = recorded.events(NonFiniteSeen)
    assert (seen.step, seen.what) == (first_bad + MAX_SKIPPED - 1, "gradient")
    assert len([step for step in recorded.steps if step.num_nan]) < 25


@pytest.mark.parametrize("order", [("sound", "bad"), ("bad", "sound")])
def test_one_of_two_optimizers_that_is_always_skipped_is_told_of(order: tuple[str, str], tmp_path: Path) -> None:
    def train() -> None:
        weights = {"sound": torch.ones(1, requires_grad=True), "bad": torch.zeros(1, requires_grad=True)}
        optimizers = {name: torch.optim.SGD([weight], lr=0.0) for name, weight in weights.items()}
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(MAX_SKIPPED + 4):
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            scaled = scaler.scale((weights["sound"] + weights["bad"].sqrt()).sum())
            scaled.backward()  # type: ignore[no-untyped-call]
            for name in order:
                scaler.step(optimizers[name])
            scaler.update()

    recorded = record_here(tmp_path, train)
    (seen,) = recorded.events(NonFiniteSeen)
    assert (seen.step, seen.what) == (MAX_SKIPPED - 1, "gradient")
    assert all(step.is_skipped for step in recorded.steps)


def test_unscaling_clipping_and_the_scaler_belong_to_the_update_of_a_skipped_step_too(tmp_path: Path) -> None:
    def train() -> None:
        (model, optimizer), scaler = make_training(), torch.amp.GradScaler("cpu", init_scale=16.0)
        for number, batch in enumerate(make_loader(5)):
            optimizer.zero_grad()
            scaler.scale(error_of(model, *batch) * (math.inf if number == 2 else 1.0)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    steps = record_here(tmp_path, train).steps
    updating = ["optimizer"] * 4  # unscale_, clip_grad_norm_, step and update
    assert [stages(step)[-7:] for step in steps] == [["data", "forward", "backward", *updating]] * 5
    assert [step.is_skipped for step in steps] == [False, False, True, False, False]


def scaled_by(scaler: torch.amp.GradScaler) -> Callable[[], None]:
    def train() -> None:
        weight, optimizer = make_weight()
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return train


def built_within(recorded: Recorded) -> list[tuple[str | None, float, int]]:
    """Of each scaler that was noted: its line, its scale, and its other settings; none that failed to be."""
    assert recorded.events(CollectorStopped) == []
    return [(event.site, event.init_scale, event.growth_interval) for event in recorded.events(ScalerBuilt)]


def test_a_scaler_is_noted_with_its_line_and_settings(tmp_path: Path) -> None:
    def train() -> None:
        torch.amp.GradScaler("cpu", enabled=False)
        scaled_by(torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=7))()  # made here

    gc.collect()
    ((site, *settings),) = built_within(record_here(tmp_path, train))
    name = "tests/recorder/numbers/test_loss_scaling.py"
    assert site == f"{name}:{line_of(Path(__file__), 'made here')}:{train.__qualname__}"
    assert settings == [16.0, 7]


def test_a_scaler_made_before_the_recording_or_loaded_is_watched_and_noted_without_a_line(tmp_path: Path) -> None:
    gc.collect()
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    saved = pickle.dumps(scaler)

    def train() -> None:
        scaled_by(scaler)()
        scaled_by(pickle.loads(saved))()  # noqa: S301 - our own

    recorded = record_here(tmp_path, train)
    assert built_within(recorded) == [(None, 16.0, 2000)] * 2
    assert recorded_steps(recorded) == [(1.0, 16.0, False)] * 2


def test_a_loss_that_is_not_scaled_is_not_taken_for_one_that_was(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer, scaler = make_scaled()
        for number in range(6):
            optimizer.zero_grad()
            if number % 2:
                weight.sum().mul(3.0).backward()  # which may lie where the last scaled one lay
                optimizer.step()
            else:
                scaler.scale(weight.sum().mul(2.0)).backward()
                scaler.step(optimizer)
                scaler.update()

    assert [step.loss for step in record_here(tmp_path, train).steps] == [2.0, 3.0] * 3


Scaler = torch.amp.GradScaler
Losses = list[torch.Tensor]


def scale_each(scaler: Scaler, losses: Losses) -> Losses:
    return [scaler.scale(loss) for loss in losses]


BACKWARD: dict[str, Callable[[Scaler, Losses], object]] = {
    "each scaled": lambda scaler, losses: torch.autograd.backward(scale_each(scaler, losses)),
    "a list scaled": lambda scaler, losses: torch.autograd.backward(scaler.scale(losses)),
    "one after another": lambda scaler, losses: [scaled.backward() for scaled in scale_each(scaler, losses)],
    "one of them scaled": lambda scaler, losses: torch.autograd.backward([scaler.scale(losses[0]), *losses[1:]]),
    "divided before": lambda scaler, losses: torch.autograd.backward([scaler.scale(loss / 0.5) for loss in losses]),
    "divided since": lambda scaler, losses: torch.autograd.backward(
        [each / 0.5 for each in scale_each(scaler, losses)]
    ),
    "summed since": lambda scaler, losses: torch.stack(scale_each(scaler, losses)).sum().backward(),
    "a mean since": lambda scaler, losses: scaler.scale(torch.stack(losses)).mean().backward(),
    "another beside it": lambda scaler, losses: (scaler.scale(losses[0]), sum(losses[1:], losses[0]).backward()),
}


@pytest.mark.parametrize("way", BACKWARD)
def test_however_losses_are_scaled_their_own_values_are_added(way: str, tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer, scaler = make_scaled()
        for _ in range(4):
            optimizer.zero_grad()
            BACKWARD[way](scaler, [(weight * factor).sum() for factor in (2.0, 3.0, 7.0)])
            scaler.step(optimizer)
            scaler.update()

    total = {"divided before": 24.0, "divided since": 24.0, "a mean since": 4.0}.get(way, 12.0)
    recorded = record_here(tmp_path, train)
    assert [step.loss for step in recorded.steps] == [total] * 4
    assert recorded.events(CollectorStopped) == []
