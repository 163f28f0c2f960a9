"""Which clipped gradients are told to be scaled still, and which norm is recorded of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, ScaledClips
from tests.recorder.recording import line_of, record_here
from tests.recorder.training import make_batch, make_training

NUM_STEPS = 6
SCALE = 1024.0


def by_norm(parameters: Any, _: torch.amp.GradScaler) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, 0.5)  # clip


def by_value(parameters: Any, _: torch.amp.GradScaler) -> None:
    torch.nn.utils.clip_grad_value_(parameters, clip_value=0.5)


def by_a_scaled_limit(parameters: Any, scaler: torch.amp.GradScaler) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, max_norm=1.0 * scaler.get_scale())


def measure(parameters: Any, _: torch.amp.GradScaler) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, float("inf"))


def train(
    clip: Callable[..., None] = by_norm, *, unscales: bool = False, num_batches: int = 1, scale: float = SCALE
) -> None:
    model, optimizer = make_training()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for _ in range(num_batches):
            inputs, targets = make_batch()
            scaler.scale((model(inputs) - targets).square().mean()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        clip(model.parameters(), scaler)
        scaler.step(optimizer)  # step
        scaler.update()


def without_a_scaler() -> None:
    model, optimizer = make_training()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        inputs, targets = make_batch()
        scaler.scale((model(inputs) - targets).square().mean()).backward()
        by_norm(model.parameters(), scaler)
        scaler.step(optimizer)
        scaler.update()


def clip_another_network() -> None:
    """The gradients that are clipped are those of no scaler."""
    (model, optimizer), (other, of_other) = make_training(), make_training()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for _ in range(NUM_STEPS):
        for one in (optimizer, of_other):
            one.zero_grad()
        inputs, targets = make_batch()
        (other(inputs) - targets).square().mean().backward()
        scaler.scale((model(inputs) - targets).square().mean()).backward()
        by_norm(other.parameters(), scaler)
        of_other.step()
        scaler.step(optimizer)
        scaler.update()


def told(folder: Path, program: Callable[[], None]) -> ScaledClips | None:
    recorded = record_here(folder, program)
    assert recorded.events(CollectorStopped) == []
    found = recorded.events(ScaledClips)
    return found[-1] if found else None


@pytest.mark.parametrize("clip", [by_norm, by_value])
@pytest.mark.parametrize("num_batches", [1, 3])
def test_gradients_that_are_clipped_before_they_are_unscaled_are_counted(
    clip: Callable[..., None], num_batches: int, tmp_path: Path
) -> None:
    event = told(tmp_path, partial(train, clip, num_batches=num_batches))
    assert event is not None
    assert (event.num_updates, event.num_scaled) == (NUM_STEPS, NUM_STEPS)
    assert (event.limit, event.scale, event.is_varied) == (0.5, SCALE, False)


def test_the_lines_of_the_clip_and_of_the_scaler_s_step_are_told(tmp_path: Path) -> None:
    event = told(tmp_path, train)
    assert event is not None
    assert event.site.split(":")[1:] == [str(line_of(Path(__file__), "clip")), "by_norm"]
    assert event.step_site is not None
    assert event.step_site.split(":")[1:] == [str(line_of(Path(__file__), "step")), "train"]


@pytest.mark.parametrize(
    "program", [partial(train, unscales=True), partial(train, by_a_scaled_limit), partial(train, scale=1.0)]
)
def test_limits_that_are_right_are_not_counted(program: Callable[[], None], tmp_path: Path) -> None:
    event = told(tmp_path, program)
    assert event is not None
    assert (event.num_updates, event.num_scaled) == (NUM_STEPS, 0)


@pytest.mark.parametrize("program", [partial(train, measure), without_a_scaler, clip_another_network])
def test_where_no_gradients_of_a_scaler_are_clipped_nothing_is_told(
    program: Callable[[], None], tmp_path: Path
) -> None:
    assert told(tmp_path, program) is None


@pytest.mark.parametrize("settings", [{}, {"fused": True}], ids=["plain", "fused"])
@pytest.mark.parametrize("unscales", [False, True])
def test_the_recorded_norm_is_that_of_the_unscaled_gradients(
    unscales: bool, settings: dict[str, bool], tmp_path: Path
) -> None:
    def follow() -> None:
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.0, **settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            scaler.scale((weight * 3).sum()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([weight], 1e6)
            scaler.step(optimizer)
            scaler.update()

    assert [step.gradient_norm for step in record_here(tmp_path, follow).steps] == [3.0] * NUM_STEPS


def test_a_clip_ahead_of_the_program_s_own_unscaling_is_told_with_that_line(tmp_path: Path) -> None:
    def unscale_too_late() -> None:
        model, optimizer = make_training()
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            inputs, targets = make_batch()
            scaler.scale((model(inputs) - targets).square().mean()).backward()
            by_norm(model.parameters(), scaler)
            scaler.unscale_(optimizer)  # too late
            scaler.step(optimizer)
            scaler.update()

    event = record_here(tmp_path, unscale_too_late).events(ScaledClips)[-1]
    assert event.num_scaled == event.num_updates >= NUM_STEPS - 1
    assert (event.unscale_site or "").split(":")[1] == str(line_of(Path(__file__), "too late"))
