"""A collector that breaks costs its own artifact: one warning, the same losses, and the report says so."""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.facts.run import open_run
from efprof.facts.run_warnings import warnings_of
from efprof.recorder import collectors
from efprof.recorder.shell import Shell
from tests.recorder.recording import record_here
from tests.recorder.test_loop import error_of, make_loader, make_model

COLLECTORS = [module.name for module in pkgutil.iter_modules(collectors.__path__)]
NUM_STEPS = 8
WINDOWS = {"windows": ((3, 5),)}


def train_seeded() -> list[float]:
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    losses = []
    for inputs, targets in make_loader(NUM_STEPS):
        optimizer.zero_grad()
        loss = error_of(model, inputs, targets)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def bare_losses() -> list[float]:
    return train_seeded()


def check_that_only_it_stopped(
    name: str, folder: Path, bare_losses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    losses: list[float] = []
    recorded = record_here(folder, lambda: losses.extend(train_seeded()), windows=WINDOWS.get(name, ()))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("efprof:")]
    assert line.startswith(f"efprof: the {name} collector stopped, training goes on: ZeroDivisionError")
    assert losses == bare_losses
    assert [step.step for step in recorded.steps] == list(range(NUM_STEPS))
    assert [event.collector for event in recorded.events(CollectorStopped)] == [name]
    assert [warning for warning in warnings_of(open_run(folder)) if f"'{name}' stopped" in warning]


@pytest.mark.parametrize("name", COLLECTORS)
def test_a_collector_that_cannot_start_is_told_of_once(
    name: str,
    tmp_path: Path,
    bare_losses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = importlib.import_module(f"{collectors.__name__}.{name}")
    monkeypatch.setattr(module, "start", lambda session: 1 // 0)
    check_that_only_it_stopped(name, tmp_path, bare_losses, capsys)


@pytest.mark.parametrize("num_good", [0, 2], ids=["at its first call", "in the midst of its work"])
@pytest.mark.parametrize("name", COLLECTORS)
def test_a_collector_that_breaks_at_its_work_is_told_of_once(
    name: str,
    num_good: int,
    tmp_path: Path,
    bare_losses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = break_after(num_good, name, monkeypatch)
    try:
        check_that_only_it_stopped(name, tmp_path, bare_losses, capsys)
    finally:
        if len(calls) <= num_good:
            pytest.skip(f"{name} is called {len(calls)} times in this training, on this machine")


def break_after(num_good: int, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the collector's guarded functions raise after so many calls; the result grows by each call."""
    guarded = Shell.guarded
    calls: list[str] = []

    def breaking(shell: Shell, collector: str, function: Callable[..., Any]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            calls.append(name)
            if len(calls) > num_good:
                raise ZeroDivisionError("broken by a test")
            function(*args)

        is_start = getattr(function, "__name__", "") == "_start_collector"
        return guarded(shell, collector, call if collector == name and not is_start else function)

    monkeypatch.setattr(Shell, "guarded", breaking)
    return calls
