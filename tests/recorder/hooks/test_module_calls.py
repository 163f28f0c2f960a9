"""The calls of modules are seen, and their classes are as they were: to a program, to a pickle, to who traces them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recorder.recording import UPDATE, Recorded, record_here, running_session, stages

FEW, MANY = 8, 60


class Plain(torch.nn.Linear):
    """A module that is called as any."""


class Own(torch.nn.Linear):
    """A module with a `__call__` of its own."""

    def __call__(self, *args: Any) -> torch.Tensor:
        return super().__call__(*args)  # type: ignore[no-any-return]


WEIGHT = torch.ones(3, 1, requires_grad=True)


def train(model: torch.nn.Module, num_steps: int = FEW, each: Callable[[int], object] = lambda _: None) -> None:
    optimizer = torch.optim.SGD([*model.parameters(), WEIGHT], lr=0.0)
    for number in range(num_steps):
        each(number)
        optimizer.zero_grad()
        model(torch.ones(2, 3, requires_grad=True)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [Plain, Own])
def test_a_class_whose_calls_are_seen_is_as_it_was(kind: type[torch.nn.Module], tmp_path: Path) -> None:
    before, called = dict(vars(kind)), kind.__call__
    model = kind(3, 1)
    with running_session(tmp_path):
        train(model)
        assert dict(vars(kind)) == before
        assert kind.__call__ is called
        train(model)
    assert [stages(step) for step in Recorded(folder=tmp_path).steps] == [UPDATE] * (2 * FEW)


def test_a_class_made_of_a_watched_one_is_called_by_its_own_way(tmp_path: Path) -> None:
    called: list[str] = []

    def call(self: torch.nn.Module, *args: Any) -> Any:
        called.append(type(self).__name__)
        return Plain.__call__(self, *args)

    def train_both() -> None:
        train(Plain(3, 1))
        train(type("Inheriting", (Plain,), {})(3, 1))
        train(type("Calling", (Plain,), {"__call__": call})(3, 1))

    recorded = record_here(tmp_path, train_both)
    assert called == ["Calling"] * FEW
    assert {"forward" in stages(step) for step in recorded.steps[-3:]} == {True}


def test_a_call_that_the_program_puts_in_meanwhile_is_called_and_outlives_the_recording(tmp_path: Path) -> None:
    kind, called = type("Changed", (torch.nn.Linear,), {}), []

    def call(self: torch.nn.Module, *args: Any) -> Any:
        called.append(1)
        return torch.nn.Linear.__call__(self, *args)

    def change(number: int) -> None:
        if number == 30:
            kind.__call__ = call  # type: ignore[method-assign]

    recorded = record_here(tmp_path, lambda: train(kind(3, 1), MANY, each=change))
    assert len(called) == 30
    assert vars(kind)["__call__"] is call
    assert [stages(step) for step in recorded.steps[40:]] == [UPDATE] * 20
