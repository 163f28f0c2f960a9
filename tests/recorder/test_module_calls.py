"""The calls of modules are seen, and their classes are as they were: to a program, to a pickle, to who traces them."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.recorder import sprint, stopwatches
from efprof.recorder.stopwatches import HAS_STOPWATCH
from tests.recorder.recording import Recorded, open_session, record_here
from tests.recorder.test_hooks import num_global_hooks
from tests.recorder.test_loop import stages

FEW, MANY = 8, 60
"""Steps: after the first the outermost classes are known; most of the second are sprinted."""

PLAIN = ["forward", "backward", "optimizer"]


class Plain(torch.nn.Linear):
    """A module that is called as any."""


class Own(torch.nn.Linear):
    """A module with a `__call__` of its own."""

    def __call__(self, *args: Any) -> torch.Tensor:
        return super().__call__(*args)  # type: ignore[no-any-return]


def run_forward(inputs: torch.Tensor) -> torch.Tensor:
    return inputs @ WEIGHT


WEIGHT = torch.ones(3, 1, requires_grad=True)


class Calling:
    """What is called for a module, and is no function."""

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return run_forward(inputs)


CALLED: dict[str, object] = {
    "partialmethod": functools.partialmethod(torch.nn.Linear.forward),
    "callable object": Calling(),
    "partial": functools.partial(run_forward),
    "function in C": torch._C._nn.gelu,
    "static method": staticmethod(run_forward),
    "property": property(lambda self: self.forward),
}


def train(model: torch.nn.Module, num_steps: int = FEW, each: Callable[[int], object] = lambda _: None) -> None:
    optimizer = torch.optim.SGD([*model.parameters(), WEIGHT], lr=0.0)
    for number in range(num_steps):
        each(number)
        optimizer.zero_grad()
        model(torch.ones(2, 3, requires_grad=True)).square().mean().backward()
        optimizer.step()


needs_c = pytest.mark.skipif(not HAS_STOPWATCH, reason="without a compiler the hooks for all modules stay")


@needs_c
@pytest.mark.parametrize("kind", [Plain, Own])
def test_a_class_whose_calls_are_seen_is_as_it_was(kind: type[torch.nn.Module], tmp_path: Path) -> None:
    before, called = dict(vars(kind)), kind.__call__
    model = kind(3, 1)
    session = open_session(tmp_path)
    session.start()
    try:
        at_start = num_global_hooks()
        train(model)
        assert num_global_hooks() == at_start - 2, "now the class is watched"
        assert dict(vars(kind)) == before
        assert kind.__call__ is called
        train(model)
    finally:
        session.end()
    assert [stages(step) for step in Recorded(folder=tmp_path).steps] == [PLAIN] * (2 * FEW)


@needs_c
@pytest.mark.parametrize("name", CALLED)
def test_what_is_called_for_a_module_need_be_no_function(name: str, tmp_path: Path) -> None:
    kind = type("Called", (torch.nn.Linear,), {"__call__": CALLED[name]})
    model, inputs = kind(3, 1), torch.ones(2, 3)
    expected, began, ended = model(inputs), list[object](), list[bool]()
    session = open_session(tmp_path)
    session.start()
    watch = session.loop.watch
    try:
        watch.are_hooks_in = False  # as once it is known what to watch
        assert watch.watch_class(kind, began.append, lambda: ended.append(True))
        result = model(inputs)
    finally:
        watch.leave_classes(kind)
        session.end()
    assert torch.equal(result, expected)
    assert (began, ended) == ([model], [True])


@needs_c
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


@needs_c
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
    assert [stages(step) for step in recorded.steps[40:]] == [PLAIN] * 20


def test_a_model_that_was_traced_is_seen_again(tmp_path: Path) -> None:
    """torch.fx replaces every module's `__call__` for a while."""
    model = Plain(3, 1)

    def trace(number: int) -> None:
        if number == 30:
            torch.fx.symbolic_trace(torch.nn.Sequential(model))

    recorded = record_here(tmp_path, lambda: train(model, MANY, each=trace))
    assert sum(stages(step) != PLAIN for step in recorded.steps) <= 2, "the ones after it"


def test_a_model_that_is_called_by_another_way_is_seen_at_last(tmp_path: Path) -> None:
    model = Plain(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def train_by_name() -> None:
        for _ in range(MANY):
            optimizer.zero_grad()
            model.__call__(torch.ones(2, 3)).square().mean().backward()
            optimizer.step()

    recorded = record_here(tmp_path, train_by_name)
    assert [stages(step) for step in recorded.steps[20:]] == [PLAIN] * 40


def test_without_a_compiler_every_forward_pass_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatches, "HAS_STOPWATCH", False)
    monkeypatch.setattr(sprint, "HAS_STOPWATCH", False)
    recorded = record_here(tmp_path, lambda: train(Plain(3, 1), MANY))
    assert [stages(step) for step in recorded.steps] == [PLAIN] * MANY
