"""A training script in a process of its own in a fraction of a second, recorded or recording itself."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.run_file import write_run_file
from efprof.recorder.session.options import Options, encode_options
from tests.recorder.faults.fork_server import SCRIPT, Child, ForkServer
from tests.recorder.on_a_device import may_run, runs_there, why_not
from tests.simulated_cuda.cuda import SimulatedCuda
from tests.support.builders import make_run_file

Begin = Callable[..., Child]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What records in this process is recorded once more on a simulated device."""
    if runs_there(metafunc):
        metafunc.parametrize("_processor", ["cpu", "cuda"], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """There the first case of each test runs always; further ones, those of hypothesis, and what must fail are long."""
    seen = set[object]()
    for item in items:
        if isinstance(item, pytest.Function) and _processor_of(item) == "cuda":
            if item.function in seen or why_not(item) or hasattr(item.function, "hypothesis"):
                item.add_marker("long")
            else:
                seen.add(item.function)


def _processor_of(item: pytest.Function) -> object:
    return item.callspec.params.get("_processor") if hasattr(item, "callspec") else None


@pytest.fixture(autouse=True)
def _processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that the test makes lies there."""
    if getattr(request, "param", "cpu") == "cpu":
        yield
        return
    if reason := why_not(request.node):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True, run=may_run(reason)))
    with SimulatedCuda(makes_all_on=0).in_place():
        yield
        monkeypatch.undo()  # what the test has put in the place of a simulated function goes before that does


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def begin(server: ForkServer, tmp_path: Path) -> Iterator[Begin]:
    """Start a script of this text in `place`, recorded into `folder`; further keywords are the recording's options."""
    children: list[Child] = []

    def begin(text: str, *, place: Path = tmp_path, folder: Path | None = None, **fields: Any) -> Child:
        folder = folder or place / "run"
        folder.mkdir(parents=True)
        write_run_file(folder, make_run_file(ended="running"))
        (place / SCRIPT).write_text(text)
        quiet: dict[str, Any] = {"trace_steps": (), "memory_steps": (), "triggers": (), "overhead": 1.0}
        options = Options(run_folder_name=str(folder), root_name=str(place), **(quiet | fields))
        children.append(server.start(place, folder, options=encode_options(options)))
        return children[-1]

    yield begin
    _end(children)


@pytest.fixture
def begin_unrecorded(server: ForkServer, tmp_path: Path) -> Iterator[Begin]:
    """Start a script of this text that records itself, with its one run under `home`."""
    children: list[Child] = []

    def begin(text: str, home: Path) -> Child:
        (tmp_path / SCRIPT).write_text(text)
        children.append(server.start(tmp_path, home, options="", environment={"EFPROF_HOME": str(home)}))
        return children[-1]

    yield begin
    _end(children)


def _end(children: list[Child]) -> None:
    for child in children:
        if child.code is None:
            child.end_by(signal.SIGKILL)
