"""Profiler windows: what is in them, and whom they leave alone."""

import cProfile
import gzip
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from efprof.artifacts.allocations import AllocationEvent, allocation_paths, read_allocations
from efprof.artifacts.events import CollectorStopped, WindowClosed, WindowOpened
from efprof.artifacts.readings import LONG_STEPS_FILE
from efprof.artifacts.trace.read import lean_paths, read_window, trace_paths
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.facts.time.time_use import TimeUse
from efprof.recorder.hooks.torch_versions import version_of
from efprof.recorder.session.options import DEFAULT_TRACE_STEPS
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from efprof.recorder.windows.allocation_rows import CallSites
from efprof.recorder.windows.triggers import WindowRequests
from tests.recorder.recording import Recorded, line_of, record_here
from tests.recorder.training import (
    error_of,
    evaluate,
    make_loader,
    make_model,
    make_training,
    train,
    train_plainly,
    train_step,
)
from tests.support.builders import named
from tests.support.waiting import MAX_WAIT_S

HERE = Path(__file__)

pytestmark = pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")


class Model(torch.nn.Module):
    """Its gradient needs memory that its forward line is to blame for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(50_000))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs.sum() * self.weight).sum()  # forward line


def train_model() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for inputs, _ in make_loader(6):
        optimizer.zero_grad()
        model(inputs).backward()  # model call
        optimizer.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_here(tmp_path_factory.mktemp("windows"), train_model, windows=((2, 4), (5, 9)))


@pytest.fixture(scope="module")
def allocations(recorded: Recorded) -> tuple[AllocationEvent, ...]:
    return read_allocations(allocation_paths(recorded.rank)[0]).events


def test_the_steps_of_a_window_are_marked(recorded: Recorded) -> None:
    assert [step.window for step in recorded.steps] == [None, None, "trace-1", "trace-1", None, "trace-2"]


def test_a_window_that_the_program_ends_in_is_kept(recorded: Recorded) -> None:
    assert [path.name for path in trace_paths(recorded.rank)] == ["trace-1.json.gz", "trace-2.json.gz"]
    assert [event.window for event in recorded.events(WindowClosed)] == ["trace-1", "trace-2"]


def test_what_samples_a_long_step_is_not_in_the_window(tmp_path: Path) -> None:
    """On a busy machine a step in a window may be so long that the samples were more events than the step."""

    def train() -> None:
        model, optimizer = make_training()
        for step, batch in enumerate(make_loader(12)):
            if 8 <= step < 10:
                time.sleep(0.5)
            train_step(model, optimizer, *batch)

    recorded = record_here(tmp_path, train, windows=((8, 10),))
    assert (recorded.rank / LONG_STEPS_FILE).read_text().count("started_ns") > 1, "they were sampled"
    (path,) = trace_paths(recorded.rank)
    with gzip.open(path, "rt") as file:
        assert file.read().count("): calls_of") < 5


@pytest.fixture(scope="module")
def with_lean(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_here(tmp_path_factory.mktemp("lean"), lambda: train_plainly(12), windows=DEFAULT_TRACE_STEPS)


def test_a_scheduled_window_is_followed_by_a_lean_one_without_stacks_shapes_and_memory(with_lean: Recorded) -> None:
    windows = {step.step: step.window for step in with_lean.steps if step.window}
    assert windows == {3: "calls-1", 4: "trace-1", 5: "trace-1", 8: "lean-1", 9: "lean-1"}
    assert [event.files for event in with_lean.events(WindowClosed) if event.window == "lean-1"] == [["lean-1.json.gz"]]
    lean = read_window(lean_paths(with_lean.rank)["trace-1"])
    assert named(lean, "aten::addmm")
    assert not {"python_function", "[memory]", "shapes"} & {*lean.texts, *lean.sparse}


def test_the_time_of_lines_is_that_of_the_lean_window_and_adds_up_to_its_steps(with_lean: Recorded) -> None:
    window = open_run(with_lean.folder).get(TimeUse).window
    assert (window.name, window.numbers) == ("lean-1, with the lines of trace-1", (8, 9))
    lean = read_window(lean_paths(with_lean.rank)["trace-1"])
    for name in ("aten::addmm", "autograd::engine::evaluate_function: AddmmBackward0", "Optimizer.step#SGD.step"):
        ours, theirs = (trace.duration_ns[named(trace, name)].tolist() for trace in (window.trace, lean))
        assert ours == theirs != []
    spent_ns = sum(path.own_ns for path in window.paths.root.walk()) + window.paths.recorder_ns
    assert spent_ns == pytest.approx(sum(end - start for start, end in window.steps), rel=0.02)


def test_a_window_that_is_put_off_comes_before_a_lean_one_at_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, affordable = ((2, 3), (3, 4)), iter([True, *[False] * 5, True])
    monkeypatch.setattr("efprof.recorder.windows.windows.DEFAULT_TRACE_STEPS", planned)
    monkeypatch.setattr("efprof.recorder.windows.windows.POSTPONED_STEPS", 3)
    monkeypatch.setattr("efprof.recorder.windows.windows.LEAN_DISTANCE", 3)
    monkeypatch.setattr(WindowRequests, "are_affordable", lambda _, cost_ns=None: cost_ns is None or next(affordable))
    recorded = record_here(tmp_path, lambda: train_plainly(8), windows=planned)
    windows = {step.step: step.window for step in recorded.steps if step.window}
    assert windows == {1: "calls-1", 2: "trace-1", 5: "calls-2", 6: "trace-2"}


def test_a_call_from_the_users_code_has_the_line_that_made_it(recorded: Recorded) -> None:
    window = read_window(trace_paths(recorded.rank)[0])
    sites = [window.texts[code] for code in window.sparse["call_site"][1]]
    called, forward = line_of(HERE, "model call"), line_of(HERE, "forward line")
    assert f"tests/recorder/windows/test_windows.py:{called}:train_model" in sites
    assert sites.count(f"tests/recorder/windows/test_windows.py:{forward}:forward") >= 2


def test_nothing_half_written_is_left(recorded: Recorded) -> None:
    assert [path.name for path in recorded.rank.iterdir() if path.name.startswith(".")] == []


def test_a_forward_allocation_has_the_users_line_and_module(allocations: tuple[AllocationEvent, ...]) -> None:
    site = f"tests/recorder/windows/test_windows.py:{line_of(HERE, 'forward line')}:forward"
    products = [event for event in allocations if event.num_bytes == 200_000 and not event.is_backward]
    assert {event.operation for event in products} == {"aten::mul"}, "an operator has its line too"
    assert all(site in event.stack and "Model" in event.modules for event in products)
    assert products


def test_what_backward_allocates_has_the_line_of_its_forward_operation(
    allocations: tuple[AllocationEvent, ...],
) -> None:
    gradients = [event for event in allocations if event.num_bytes == 200_000 and event.is_backward]
    forward_line = f"tests/recorder/windows/test_windows.py:{line_of(HERE, 'forward line')}:forward"
    assert gradients
    assert all(forward_line in event.forward_stack for event in gradients)


def test_what_is_allocated_is_released_at_the_same_address(allocations: tuple[AllocationEvent, ...]) -> None:
    live: dict[int, int] = {}
    for event in allocations:
        if event.num_bytes > 0:
            live[event.address] = event.num_bytes
        elif event.address in live:
            assert live.pop(event.address) == -event.num_bytes
    assert len(live) < len(allocations) / 4


def test_a_program_that_is_profiling_itself_is_left_alone(tmp_path: Path) -> None:
    def train_profiled() -> None:
        with torch.profiler.profile(with_stack=True) as profiler:
            train_plainly(6)
        profiler.export_chrome_trace(str(tmp_path / "own.json"))

    recorded = record_here(tmp_path, train_profiled, windows=((2, 4),))
    assert recorded.events(WindowOpened) == []
    (stopped,) = recorded.events(CollectorStopped)
    assert "profiling itself" in stopped.reason
    assert len(recorded.steps) == 6
    told = (tmp_path / "own.json").read_text()
    assert "aten::mse_loss" in told
    assert "holders/walk.py" not in told  # a count of ours would be most of it
    assert any("holds the recorder's calls too" in one for one in warnings_of(open_run(recorded.folder)))


def test_a_program_that_profiles_another_of_its_threads_is_left_alone(tmp_path: Path) -> None:
    """Torch crashes where two threads profile at once, as the last of them stops."""
    begun, may_end, others = threading.Event(), threading.Event(), []

    def evaluate() -> None:
        with torch.profiler.profile() as profiler:
            torch.ones(3).cumsum(0)
            begun.set()
            may_end.wait(MAX_WAIT_S)
        others.extend(event.key for event in profiler.key_averages())

    def train_beside() -> None:
        thread = threading.Thread(target=evaluate)
        thread.start()
        assert begun.wait(MAX_WAIT_S)
        train_plainly(4)
        may_end.set()
        thread.join()
        train_plainly(4)

    recorded = record_here(tmp_path, train_beside, windows=((2, 3), (5, 6)))
    assert "aten::cumsum" in others
    assert [event.step for event in recorded.events(WindowOpened)] == [5]
    assert ["profiling itself" in event.reason for event in recorded.events(CollectorStopped)] == [True]


@pytest.mark.skipif(version_of(torch) < (2, 13), reason="needs torch 2.13: up to 2.11 one thread profiles at a time")
@pytest.mark.parametrize("last", [3, 5])
def test_a_thread_that_begins_to_profile_within_a_window_costs_all_windows_from_then_on(
    last: int, tmp_path: Path
) -> None:
    """Whether it ends before the window does or after, where torch would crash."""
    begun, may_end, was_on = threading.Event(), threading.Event(), []

    def profile() -> None:
        with torch.profiler.profile():
            begun.set()
            may_end.wait(MAX_WAIT_S)

    def train_beside() -> None:
        model, thread = make_model(), threading.Thread(target=profile)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, batch in enumerate(make_loader(9)):
            if number == 2:
                thread.start()
                assert begun.wait(MAX_WAIT_S)
            train_step(model, optimizer, *batch)
            was_on.append(torch.autograd._profiler_enabled())
            if number == last:
                may_end.set()
                thread.join()

    recorded = record_here(tmp_path, train_beside, windows=((2, 5), (7, 8)))
    assert [(event.step, event.files) for event in recorded.events(WindowClosed)] == [(max(last, 4), [])]
    assert ["another thread" in event.reason for event in recorded.events(CollectorStopped)] == [True]
    assert [number for number, is_on in enumerate(was_on) if is_on] == [*range(2, max(last, 4) + 1)]


def test_a_profiler_that_the_program_starts_within_a_window_takes_over(tmp_path: Path) -> None:
    def train_and_profile() -> None:
        model, optimizer = make_training()
        for number, batch in enumerate(make_loader(6)):
            if number == 3:
                with torch.profiler.profile() as profiler:
                    error_of(model, *batch).backward()
                assert profiler.key_averages()
            train_step(model, optimizer, *batch)

    recorded = record_here(tmp_path, train_and_profile, windows=((2, 5),))
    assert [event.step for event in recorded.events(WindowClosed)] == [3]
    assert len(recorded.steps) == 6
    (stopped,) = recorded.events(CollectorStopped)
    assert stopped.reason == "the program began to profile itself, so a window ended early"


def test_a_python_profiler_of_the_program_keeps_counting(tmp_path: Path) -> None:
    profiler = cProfile.Profile()
    recorded = record_here(tmp_path, lambda: profiler.runcall(train_plainly, 6), windows=((2, 4),))
    assert recorded.events(WindowOpened) == []
    assert ["profiling itself" in event.reason for event in recorded.events(CollectorStopped)] == [True]
    steps = [entry.callcount for entry in profiler.getstats() if getattr(entry.code, "co_name", "") == "error_of"]
    assert steps == [6]


@pytest.mark.parametrize(
    ("window", "steps", "num_losses"), [((3, 5), [4, 5], {2}), ((2, 5), [2], {1, 2})], ids=["before it", "within it"]
)
def test_an_evaluation_puts_a_window_off_or_ends_it(
    window: tuple[int, int], steps: list[int], num_losses: set[int], tmp_path: Path
) -> None:
    def train_and_evaluate() -> None:
        model, optimizer = make_training()
        for _ in range(3):
            train(model, make_loader(3), optimizer)
            evaluate(model, make_loader(4))

    recorded = record_here(tmp_path, train_and_evaluate, windows=(window,))
    assert [step.step for step in recorded.steps if step.window] == steps
    trace = read_window(trace_paths(recorded.rank)[0])
    assert len(named(trace, "aten::mse_loss")) in num_losses


STARTS_AGAIN = pytest.mark.skipif(
    version_of(torch) < (2, 13),
    reason="needs torch 2.13: older ones profile no more after a start that was interrupted",
)


def when_started(strike: Callable[[], object], *, is_on: bool) -> Callable[[torch.autograd.profiler.profile], None]:
    """What starts torch's profiler, and is struck once: after that is on, or before."""
    original, struck = torch.autograd.profiler.profile._start_trace, []

    def start(profiler: torch.autograd.profiler.profile) -> None:
        if is_on or struck:
            original(profiler)
        if not struck:
            struck.append(True)
            strike()

    return start


@pytest.mark.parametrize("is_on", [True, pytest.param(False, marks=STARTS_AGAIN)])
def test_ctrl_c_while_a_window_opens_ends_that_window_only(
    is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = when_started(lambda: signal.raise_signal(signal.SIGINT), is_on=is_on)
    monkeypatch.setattr(torch.autograd.profiler.profile, "_start_trace", start)
    was_on = []

    def train_on() -> None:
        model, optimizer = make_training()
        batches = iter(make_loader(9))
        for number in range(9):
            with suppress(KeyboardInterrupt):
                batch = next(batches)
            train_step(model, optimizer, *batch)
            if number in (3, 4):
                was_on.append(torch.autograd._profiler_enabled())

    recorded = record_here(tmp_path, train_on, windows=((2, 5), (6, 8)))
    assert was_on == [False, False]
    assert [step.step for step in recorded.steps if step.window] == [6, 7]
    assert [(event.step, event.files == []) for event in recorded.events(WindowClosed)] == [(2, True), (7, False)]
    assert recorded.events(CollectorStopped) == []


def test_a_profiler_that_fails_as_it_starts_is_not_left_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = when_started(lambda: 1 / 0, is_on=True)
    monkeypatch.setattr(torch.autograd.profiler.profile, "_start_trace", start)
    was_on = []

    def train_on() -> None:
        train_plainly(6)
        was_on.append(torch.autograd._profiler_enabled())

    recorded = record_here(tmp_path, train_on, windows=((2, 20),))
    assert was_on == [False]
    assert len(recorded.steps) == 6
    assert [event.collector for event in recorded.events(CollectorStopped)] == ["windows"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_code_that_is_freed_within_a_window_costs_its_name_alone(tmp_path: Path) -> None:
    """The profiler keeps where the name of its file lay, and not the name."""

    class Freed:
        line_number, function_name = 1, "made"

        @property
        def file_name(self) -> str:
            return b"\xe0\xe0".decode()

    sites = Sites(tmp_path, LineWriter(RankFolder(tmp_path), "sources.jsonl").write)
    assert CallSites(sites).note(SimpleNamespace(start_time_ns=5), Freed()) == "?:0:?"


@pytest.mark.filterwarnings("error")
def test_a_window_provokes_no_warning(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, lambda: train_plainly(4), windows=((2, 3),))
    assert recorded.events(CollectorStopped) == []
    assert len(trace_paths(recorded.rank)) == 1
