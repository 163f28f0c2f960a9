"""Which calls that clip gradients are told to come after the update."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, GradientClips
from tests.recorder.recording import HARDLY_ANY_IN_FULL, line_of, record_here
from tests.recorder.training import make_batch, make_training

NUM_STEPS = 6

Clip = Callable[[Any], object]


def by_norm(parameters: Any) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)  # clip


def by_value(parameters: Any) -> None:
    torch.nn.utils.clip_grad_value_(parameters, clip_value=0.1)


def backward(model: torch.nn.Module) -> None:
    inputs, targets = make_batch()
    (model(inputs) - targets).square().mean().backward()


def clip_too_late(clip: Clip = by_norm, num_steps: int = NUM_STEPS) -> None:
    model, optimizer = make_training()
    for _ in range(num_steps):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        clip(model.parameters())


def clip_in_time(clip: Clip = by_norm, num_steps: int = NUM_STEPS) -> None:
    model, optimizer = make_training()
    for _ in range(num_steps):
        optimizer.zero_grad()
        backward(model)
        clip(model.parameters())
        optimizer.step()


def clip_the_other_network() -> None:
    """The first one's optimizer has stepped by the time that the second one's gradients are clipped."""
    first, second = make_training(), make_training()
    for _ in range(NUM_STEPS):
        for model, optimizer in (first, second):
            optimizer.zero_grad()
            backward(model)
        for model, optimizer in (first, second):
            by_norm(model.parameters())
            optimizer.step()


def clip_gradients_made_by_hand() -> None:
    model, optimizer = make_training()
    parameters = list(model.parameters())
    for _ in range(NUM_STEPS):
        inputs, targets = make_batch()
        loss = (model(inputs) - targets).square().mean()
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        by_norm(parameters)
        optimizer.step()


def measure_after_the_update() -> None:
    clip_too_late(lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, float("inf")))


def counts(folder: Path, program: Callable[[], None], **options: object) -> tuple[int, int] | None:
    recorded = record_here(folder, program, **options)
    assert recorded.events(CollectorStopped) == []
    events = recorded.events(GradientClips)
    return (events[-1].num_calls, events[-1].num_late) if events else None


@pytest.mark.parametrize("clip", [by_norm, by_value])
def test_all_but_the_first_call_are_late(clip: Clip, tmp_path: Path) -> None:
    assert counts(tmp_path, partial(clip_too_late, clip)) == (NUM_STEPS - 1, NUM_STEPS - 1)


@pytest.mark.parametrize(
    "program", [clip_in_time, partial(clip_in_time, by_value), clip_gradients_made_by_hand, clip_the_other_network]
)
def test_none_is_late(program: Callable[[], None], tmp_path: Path) -> None:
    found = counts(tmp_path, program)
    assert found is not None
    assert found[0] > 0
    assert found[1] == 0


def test_where_the_norm_is_only_measured_nothing_is_told(tmp_path: Path) -> None:
    assert counts(tmp_path, measure_after_the_update) is None


@pytest.mark.parametrize(("program", "is_late"), [(clip_too_late, True), (clip_in_time, False)])
def test_no_call_is_misjudged_where_light_steps_come_between(
    program: Callable[..., None], is_late: bool, tmp_path: Path
) -> None:
    found = counts(tmp_path, partial(program, num_steps=150), overhead=HARDLY_ANY_IN_FULL)
    assert found is not None
    assert found == (found[0], found[0] * is_late)


def test_the_lines_of_the_call_and_of_the_step_are_told(tmp_path: Path) -> None:
    event = record_here(tmp_path, clip_too_late).events(GradientClips)[-1]
    assert event.site.split(":")[1:] == [str(line_of(Path(__file__), "clip")), "by_norm"]
    assert event.step_site is not None
    assert event.step_site.endswith(":clip_too_late")


def test_a_clip_ahead_of_the_pass_finds_no_gradient(tmp_path: Path) -> None:
    def clip_too_early() -> None:
        model, optimizer = make_training()
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            by_norm(model.parameters())
            backward(model)
            optimizer.step()

    event = record_here(tmp_path, clip_too_early).events(GradientClips)[-1]
    assert (event.num_late, event.num_empty, event.limit) == (0, event.num_calls, 1.0)
    assert event.num_calls >= NUM_STEPS - 1
