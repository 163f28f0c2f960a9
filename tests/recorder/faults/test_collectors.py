"""A collector that breaks costs its own artifact: one warning, the same losses, and the report says so."""

import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS
from efprof.recorder.session.session import collector_candidates
from efprof.recorder.session.shell import Shell
from tests.recorder.recording import record_here
from tests.recorder.training import error_of, make_loader, make_model, update_by_hand
from tests.simulated_cuda.cuda import SimulatedCuda

MODULES = {
    name.rpartition(".")[2]: name for name in collector_candidates() if hasattr(importlib.import_module(name), "start")
}
COLLECTORS = list(MODULES)
DONE_AT_ONCE = "start_state"
"""It has done its work once it has started."""
GUARDED = [
    *(name for name in COLLECTORS if name != DONE_AT_ONCE),
    "device_times", "device_use", "iterators", "out_of_memory", "unrecorded_updates",
]  # fmt: skip
"""Some do several things, of which one may break without the others."""

NUM_STEPS = 10
WINDOWS = {"windows": ((5, 7),)}

NEEDS_CUDA = ("cuda_memory", "device_times", "device_use", "out_of_memory")
"""Each waits until the program uses a GPU."""

NUM_GOOD = {
    "compilations": (0,), "device_times": (0,), "duplicated_logs": (0,), "optimizers": (0,), "out_of_memory": (1,),
    "unrecorded_updates": (0,),
}  # fmt: skip
"""How many calls go well before one breaks, for those that are called once or twice in a training."""


def train_seeded() -> list[float]:
    """Eight steps of an optimizer, after two of which the update is made by hand."""
    torch.manual_seed(0)
    train_by_hand(make_model())
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    losses = []
    for inputs, targets in make_loader(NUM_STEPS - 2):
        optimizer.zero_grad()
        loss = error_of(model, inputs, targets)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        gc.collect(0)
        losses.append(loss.item())
    return losses


def train_by_hand(model: torch.nn.Module) -> None:
    for inputs, targets in make_loader(2):
        error_of(model, inputs, targets).backward()  # type: ignore[no-untyped-call]
        update_by_hand(model)


@pytest.fixture(scope="module")
def bare_losses() -> list[float]:
    return train_seeded()


def check_that_only_it_stopped(
    name: str, folder: Path, bare_losses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    losses: list[float] = []
    recorded = record_here(
        folder,
        lambda: losses.extend(train_seeded()),
        windows=WINDOWS.get(name, ()),
        memory_steps=DEFAULT_MEMORY_STEPS if name == "cuda_memory" else (),
        host_memory=name == "host_memory",
        holders=None if name == "holders" else False,
    )
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
    module = importlib.import_module(MODULES[name])
    monkeypatch.setattr(module, "start", lambda session: 1 // 0)
    check_that_only_it_stopped(name, tmp_path, bare_losses, capsys)


@pytest.mark.parametrize(
    ("name", "num_good"), [(name, num_good) for name in GUARDED for num_good in NUM_GOOD.get(name, (2,))]
)
def test_a_collector_that_breaks_at_its_work_is_told_of_once(
    name: str,
    num_good: int,
    tmp_path: Path,
    bare_losses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "host_memory":
        pytest.importorskip("memray", reason="needs memray")
    break_after(num_good, name, monkeypatch)
    if name == "gate":
        monkeypatch.setenv("EFPROF_STEPS", "1000")
    with using_cuda() if name in NEEDS_CUDA else nullcontext():
        check_that_only_it_stopped(name, tmp_path, bare_losses, capsys)


@contextmanager
def using_cuda() -> Iterator[None]:
    """The program has something on a device when the recording starts."""
    with SimulatedCuda().in_place():
        held = torch.ones(3, device="cuda")
        yield
        del held


def break_after(num_good: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the collector's guarded functions raise after so many calls."""
    guarded = Shell.guarded
    num_calls = 0

    def breaking(shell: Shell, collector: str, function: Callable[..., Any]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            nonlocal num_calls
            num_calls += 1
            if num_calls > num_good:
                raise ZeroDivisionError("broken by a test")
            function(*args)

        is_start = getattr(function, "__name__", "") == "_start_collector"
        return guarded(shell, collector, call if collector == name and not is_start else function)

    monkeypatch.setattr(Shell, "guarded", breaking)


@pytest.mark.parametrize("method", ["record", "query", "elapsed_time"])
def test_a_device_that_refuses_an_event_costs_its_times_alone(
    method: str,
    tmp_path: Path,
    bare_losses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with using_cuda():
        monkeypatch.setattr(torch.cuda.Event, method, lambda self, *_: 1 // 0)
        check_that_only_it_stopped("device_times", tmp_path, bare_losses, capsys)
