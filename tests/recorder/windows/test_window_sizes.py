"""How large a window is that nobody asked for: reckoned from the step before it, smaller where it has to be."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from efprof.artifacts.allocations import allocation_paths
from efprof.artifacts.events import RecordingCost, WindowClosed, WindowLeftOut, WindowOpened
from efprof.artifacts.trace.read import read_window
from efprof.facts.overview.measurements import measurements_of
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.facts.time.trace_windows import TraceWindows
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS, DEFAULT_TRACE_STEPS, StepRange
from efprof.recorder.session.session import Session
from efprof.recorder.windows import profiled_window, step_events, windows
from efprof.recorder.windows.step_events import COUNT_NS, MAX_EVENTS, StepEvents
from tests.recorder.recording import Recorded, record_here, running_session
from tests.recorder.training import make_loader, make_training, train_plainly, train_step
from tests.simulated_cuda.cuda import SimulatedCuda
from tests.support.builders import named
from tests.support.waiting import MAX_WAIT_S

pytestmark = pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")

TOO_MANY = MAX_EVENTS + 1
FEW_NS = 1_000 * COUNT_NS
"""What the calls that begin and end a count may add to it."""


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what is reckoned of a window."""

    def set_sizes(reckon: Callable[[int, bool, bool], int]) -> None:
        monkeypatch.setattr(
            StepEvents, "in_window", lambda _, steps, *, is_lean, skips_fetch: reckon(steps, is_lean, skips_fetch)
        )

    return set_sizes


def record_scheduled(folder: Path, num_steps: int = 12) -> Recorded:
    return record_here(folder, lambda: train_plainly(num_steps), windows=DEFAULT_TRACE_STEPS)


def windows_of(recorded: Recorded) -> dict[int, str]:
    return {step.step: step.window for step in recorded.steps if step.window and not step.window.startswith("calls")}


def call_often(times: int) -> int:
    return sum(map(call_nothing, range(times)))


def call_nothing(number: int) -> int:
    return number


def test_calls_of_python_and_operators_are_reckoned_as_events() -> None:
    events, weight = StepEvents(), torch.ones(2, requires_grad=True)
    assert events.begin()
    call_often(1000)
    for _ in range(100):
        (weight * 2).sum().backward()
    events.end(7)
    full = events.in_window(1, is_lean=False, skips_fetch=False)
    lean = events.in_window(1, is_lean=True, skips_fetch=False)
    with torch.profiler.profile(with_stack=True, profile_memory=True) as profiler:
        call_often(1000)
        for _ in range(100):
            (weight * 2).sum().backward()
    assert 0.45 * full < len(profiler.profiler.kineto_results.events()) < 1.5 * full
    assert 1000 < lean < full - 1000
    assert events.in_window(2, is_lean=True, skips_fetch=False) == 2 * lean


def test_what_other_threads_of_the_program_may_call_meanwhile_is_reckoned_too() -> None:
    events, is_over = StepEvents(), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            call_often(100)

    thread = threading.Thread(target=work)
    thread.start()
    events.begin()
    give_up = time.monotonic() + MAX_WAIT_S
    while time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) < 0.5 and time.monotonic() < give_up:
        time.sleep(0.01)
    events.end(7)
    is_over.set()
    thread.join()
    assert events.in_window(1, is_lean=False, skips_fetch=False) > MAX_EVENTS
    assert events.in_window(1, is_lean=True, skips_fetch=False) < MAX_EVENTS


def test_what_a_fetch_calls_is_known_apart() -> None:
    events = StepEvents()
    events.begin()
    call_often(5000)
    events.fetch_ended()
    call_often(100)
    events.end(7)
    assert events.has_fetch
    assert events.in_window(1, is_lean=False, skips_fetch=False) > 5000
    assert events.in_window(1, is_lean=False, skips_fetch=True) < 1000


def test_a_count_ends_with_its_step_or_where_there_are_more_calls_than_a_window_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = StepEvents()
    events.begin()
    events.end(7)
    assert sys.getprofile() is None
    monkeypatch.setattr(step_events, "MAX_EVENTS", 100)
    events.begin()
    call_often(200)
    assert sys.getprofile() is None
    events.end(8)
    assert events.in_window(1, is_lean=False, skips_fetch=False) > 100


def test_a_count_that_another_thread_stops_ends_at_the_next_call() -> None:
    events = StepEvents()
    events.begin()
    other = threading.Thread(target=events.stop)
    other.start()
    other.join()
    assert sys.getprofile() is None


def test_the_price_of_an_event_is_learned_and_never_below_nothing() -> None:
    events = StepEvents()
    events.learn(12_000, 60_000_000, is_lean=True)
    assert events.cost_ns(100_000, is_lean=True) > 100_000_000
    events.learn(12_000, 1_000_000, is_lean=True)
    assert events.cost_ns(100_000, is_lean=True) > 100_000_000
    events.learn(100_000, 5_100_000_000, is_lean=False)
    assert events.cost_ns(10_000, is_lean=False) == pytest.approx(600_000_000)


def test_what_counting_costs_is_no_time_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((5_000_000, 35_000_000))
    monkeypatch.setattr(step_events, "thread_time_ns", lambda: next(times))
    events = StepEvents()
    events.begin()
    call_often(20_000)
    events.end(7)
    assert events.counting_ns == pytest.approx(40_000 * COUNT_NS, abs=FEW_NS)  # calls and returns
    own_ns = 30_000_000 - 40_000 * COUNT_NS
    assert events.own_ns(1, skips_fetch=False) == pytest.approx(own_ns, abs=FEW_NS)


def test_the_programs_own_profile_function_is_left_alone() -> None:
    events = StepEvents()
    sys.setprofile(own := lambda *_: None)
    try:
        assert not events.begin()
        events.stop()
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_that_is_forked_while_calls_are_counted_counts_none(tmp_path: Path) -> None:
    states = list[int]()

    def train() -> None:
        model, optimizer = make_training()
        for batch in make_loader(8):
            if sys.getprofile() is not None and not torch._C._autograd._profiler_enabled():
                child = os.fork()
                if not child:
                    os._exit(0 if sys.getprofile() is None else 1)
                states.append(os.waitpid(child, 0)[1])
            train_step(model, optimizer, *batch)

    record_here(tmp_path, train, windows=DEFAULT_TRACE_STEPS)
    assert states == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_that_is_forked_in_a_window_is_not_profiled(tmp_path: Path) -> None:
    states = list[int]()

    def train() -> None:
        model, optimizer = make_training()
        for batch in make_loader(8):
            if torch._C._autograd._profiler_enabled():
                child = os.fork()
                if not child:
                    os._exit(0 if sys.getprofile() is None else 1)
                states.append(os.waitpid(child, 0)[1])
            train_step(model, optimizer, *batch)

    record_here(tmp_path, train, windows=((5, 6),))
    assert states == [0]


FORKS = """
import os, sys
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    if step in (6, 11):
        is_on, child = torch.autograd._profiler_enabled(), os.fork()
        if not child:
            loss.backward()
            print("child", end=" ")
            sys.exit(6)
        print(step, is_on, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_that_is_forked_in_a_window_or_after_it_ends_as_it_means_to(tmp_path: Path) -> None:
    """Its own end takes C++'s globals down, and the profiler's wait for a thread that is the parent's alone."""
    (tmp_path / "forks.py").write_text(FORKS)
    words = [sys.executable, "-m", "efprof", "record", "--trace-steps", "5:7", "--", sys.executable, "forks.py"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=MAX_WAIT_S, check=True)
    assert ended.stdout.splitlines()[:2] == ["child 6 True 6", "child 11 False 6"]


def test_a_program_that_replaces_what_calls_a_module_is_traced_without_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's profiler looks for `self` among the local variables of that, and crashes without."""
    original = torch.nn.Module.__call__

    def call(*args: object, **kwargs: object) -> object:
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", call)
    recorded = record_here(tmp_path, lambda: train_plainly(8), windows=((5, 6),))
    assert [closed.files for closed in recorded.events(WindowClosed)] == [["trace-1.json.gz"]]


@pytest.mark.usefixtures("limits")
def test_a_count_is_paid_and_none_is_made_where_no_window_could_follow(
    tmp_path: Path, sizes: Callable[..., None]
) -> None:
    sizes(lambda *_: TOO_MANY)
    recorded = record_scheduled(tmp_path, 30)
    assert 0 < recorded.events(RecordingCost)[0].seconds["windows"] < 0.2
    with running_session(tmp_path / "poor", DEFAULT_TRACE_STEPS) as session:
        session.window_requests.spend(10**10)
        train_plainly(12)
    assert [step.window for step in Recorded(folder=tmp_path / "poor").steps if step.window] == []


def test_the_step_before_a_scheduled_window_is_counted(tmp_path: Path) -> None:
    recorded = record_scheduled(tmp_path)
    assert {step.step: step.window for step in recorded.steps if step.window} == {
        3: "calls-1", 4: "trace-1", 5: "trace-1", 8: "lean-1", 9: "lean-1",
    }  # fmt: skip


def test_a_run_of_five_steps_has_a_window_which_its_end_cuts(tmp_path: Path) -> None:
    """Also where what comes after the last step takes longer than the window's steps were to."""

    def train() -> None:
        train_plainly(5)
        end = time.thread_time() + 1.0
        while time.thread_time() < end:
            sum(range(500_000))

    recorded = record_here(tmp_path, train, windows=DEFAULT_TRACE_STEPS)
    assert windows_of(recorded) == {4: "trace-1"}
    assert len(allocation_paths(recorded.rank)) == 1


def test_no_step_is_counted_within_the_history_of_a_devices_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device the first window comes a step later: both would be measured in each other."""
    monkeypatch.setattr(windows.Windows, "_memory_steps", lambda _: DEFAULT_MEMORY_STEPS)
    assert windows_of(record_scheduled(tmp_path)) == {5: "trace-1", 6: "trace-1", 9: "lean-1", 10: "lean-1"}


def test_a_window_of_too_many_events_is_one_step_long(tmp_path: Path, sizes: Callable[..., None]) -> None:
    sizes(lambda steps, *_: 10 if steps == 1 else TOO_MANY)
    assert windows_of(record_scheduled(tmp_path)) == {4: "trace-1", 7: "lean-1"}


def test_a_step_whose_fetch_is_too_large_is_traced_from_its_end_on(tmp_path: Path, sizes: Callable[..., None]) -> None:
    sizes(lambda _, is_lean, skips_fetch: 10 if skips_fetch or is_lean else TOO_MANY)
    recorded = record_scheduled(tmp_path)
    assert windows_of(recorded) == {4: "trace-1", 7: "lean-1"}
    assert recorded.events(WindowOpened)[0].why == "schedule, without the data stage"
    trace = read_window(recorded.rank / "trace-1.json.gz")
    assert not named(trace, "enumerate(DataLoader)#_SingleProcessDataLoaderIter")


def test_where_only_operators_fit_the_window_has_no_lines_and_the_report_says_how_to_get_them(
    tmp_path: Path, sizes: Callable[..., None]
) -> None:
    sizes(lambda _, is_lean, __: 10 if is_lean else 412_310)
    recorded = record_scheduled(tmp_path)
    assert windows_of(recorded) == {4: "trace-1", 5: "trace-1"}
    assert [closed.files for closed in recorded.events(WindowClosed)] == [["trace-1.json.gz"]]
    (told,) = (one for one in warnings_of(open_run(tmp_path)) if "profiler window" in one)
    assert "About 412,310 events per step" in told
    assert "--trace-steps 4:5' records one, in 9.2 s of CPU time. It takes 0.8 to 1 GB of memory" in told


def test_a_step_too_large_for_any_window_is_not_traced_and_the_report_says_so(
    tmp_path: Path, sizes: Callable[..., None]
) -> None:
    sizes(lambda *_: 5_000_000)
    recorded = record_scheduled(tmp_path)
    assert windows_of(recorded) == {}
    assert [event.step for event in recorded.events(WindowLeftOut)] == [4]
    assert any("About 5,000,000 events per step" in one for one in warnings_of(open_run(tmp_path)))


def test_a_step_whose_calls_were_not_all_counted_has_more_than_were_and_no_time_is_told_for_it(tmp_path: Path) -> None:
    def train() -> None:
        model, optimizer = make_training()
        model.register_forward_pre_hook(call_far_too_often)
        for batch in make_loader(7):
            train_step(model, optimizer, *batch)

    def call_far_too_often(*_: object) -> None:
        call_often(2 * MAX_EVENTS)

    recorded = record_here(tmp_path, train, windows=DEFAULT_TRACE_STEPS)
    assert recorded.events(WindowLeftOut)[0].num_events < 2 * MAX_EVENTS
    (told,) = (one for one in warnings_of(open_run(tmp_path)) if "profiler window" in one)
    assert told.startswith("More than 300,000 events per step were too many for a profiler window with lines.")
    assert "--trace-steps 4:5' records one. It takes 0.8 to 1 GB of memory per million calls." in told


@pytest.mark.usefixtures("limits")
def test_a_window_dearer_than_the_allowance_is_not_opened(tmp_path: Path, sizes: Callable[..., None]) -> None:
    sizes(lambda *_: MAX_EVENTS)  # 6.6 s, 2.4 s without lines, where windows may take 1.5 s
    recorded = record_scheduled(tmp_path)
    assert windows_of(recorded) == {}
    assert recorded.events(WindowLeftOut)


def test_a_window_that_is_asked_for_opens_whatever_its_size(tmp_path: Path, sizes: Callable[..., None]) -> None:
    sizes(lambda *_: 5_000_000)
    recorded = record_here(tmp_path, lambda: train_plainly(8), windows=((5, 7),))
    assert {step.step: step.window for step in recorded.steps if step.window} == {5: "trace-1", 6: "trace-1"}
    assert recorded.events(WindowClosed)[0].files


@pytest.mark.parametrize("is_lean", [False, True], ids=["full", "lean"])
def test_a_window_that_has_more_events_than_was_reckoned_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: Callable[..., None], is_lean: bool
) -> None:
    sizes(lambda _, lean, __: 10 if lean == is_lean else TOO_MANY)
    monkeypatch.setattr(profiled_window, "MIN_EVENTS", 20)
    recorded = record_scheduled(tmp_path)
    assert [closed.files for closed in recorded.events(WindowClosed)] == [[]]
    assert sorted(tmp_path.rglob("*trace*")) == []


def test_an_evaluation_in_a_window_ends_it_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MAX_EXCESS_NS", 200_000_000)

    def train() -> None:
        model, optimizer = make_training()
        for number, batch in enumerate(make_loader(16)):
            if number == 5:
                end = time.thread_time() + 1.2
                while time.thread_time() < end:
                    sum(range(500_000))  # few calls: what is to be dropped must not be dear
                with torch.no_grad():
                    model(batch[0])
            train_step(model, optimizer, *batch)

    recorded = record_here(tmp_path, train, windows=DEFAULT_TRACE_STEPS)
    assert [(closed.step, bool(closed.files)) for closed in recorded.events(WindowClosed)][:2] == [
        (5, False),
        (9, True),
    ]
    assert windows_of(recorded)[8] == "trace-2"


@pytest.mark.parametrize(
    ("number", "asked_for", "most", "is_looked_at"),
    [(3, DEFAULT_TRACE_STEPS, 30_000, False), (4, DEFAULT_TRACE_STEPS, 30_000, False), (5, ((5, 7),), 1_000, True)],
    ids=["in the step that is counted", "in a window", "in a window that was asked for"],
)
def test_long_work_in_python_is_looked_at_no_longer_than_was_reckoned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    asked_for: tuple[StepRange, ...],
    most: int,
    is_looked_at: bool,
) -> None:
    """Afterwards a whole window comes."""
    monkeypatch.setattr(windows, "MAX_EXCESS_NS", 500_000_000)
    profile_functions = []

    def work() -> None:
        for _ in range(most):
            sum(range(10_000))
            if sys.getprofile() is None:
                return

    def train() -> None:
        model, optimizer = make_training()
        for step, batch in enumerate(make_loader(24)):
            if step == number:
                profile_functions.append(sys.getprofile())
                work()
                profile_functions.append(sys.getprofile())
            train_step(model, optimizer, *batch)

    recorded = record_here(tmp_path, train, windows=asked_for)
    before, after = profile_functions
    assert before is not None
    assert (after is not None) == is_looked_at
    assert len(recorded.steps) == 24
    closed = recorded.events(WindowClosed)
    assert any(one.files for one in closed), [closed, recorded.events(WindowLeftOut), recorded.events(RecordingCost)]


def train_and_compile(session: Session, *compiled: int) -> None:
    """As if something were compiled within these steps."""
    model, optimizer = make_training()
    for number, batch in enumerate(make_loader(16)):
        if number in compiled:
            session.loop.note_compilation()
        train_step(model, optimizer, *batch)


@pytest.mark.parametrize(
    ("compiled", "expected"),
    [
        ((0, 1), {4: "trace-1", 5: "trace-1", 8: "lean-1", 9: "lean-1"}),
        ((2,), {5: "trace-1", 6: "trace-1", 9: "lean-1", 10: "lean-1"}),
        ((3, 5), {8: "trace-1", 9: "trace-1", 12: "lean-1", 13: "lean-1"}),
        ((5,), {4: "trace-1", 5: "trace-1", 8: "trace-2", 9: "trace-2", 12: "lean-2", 13: "lean-2"}),
    ],
    ids=["long before", "two steps before", "again while it waits", "within the window, which is dropped"],
)
def test_no_window_is_open_while_code_is_compiled_or_two_steps_after_it(
    tmp_path: Path, compiled: tuple[int, ...], expected: dict[int, str]
) -> None:
    with running_session(tmp_path, DEFAULT_TRACE_STEPS) as session:
        train_and_compile(session, *compiled)
    recorded = Recorded(folder=tmp_path)
    assert windows_of(recorded) == expected
    dropped = {expected[step] for step in compiled if step in expected}
    written = {closed.window for closed in recorded.events(WindowClosed) if closed.files}
    assert written == {*expected.values()} - dropped


def test_windows_that_were_all_dropped_are_told_and_come_at_other_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MAX_STRETCH", 0)
    monkeypatch.setattr(windows, "MAX_EXCESS_NS", 0)
    recorded = record_scheduled(tmp_path, 24)
    first = [opened.step for opened in recorded.events(WindowOpened)]
    assert len({later - before for before, later in pairwise(first)}) == len(first) - 1 > 1
    run = open_run(tmp_path)
    (warning,) = (text for text in warnings_of(run) if "--trace-steps" in text)
    assert warning.startswith(f"{len(first)} profiler windows held far more than the step before")
    overhead = measurements_of(run).overhead
    assert overhead is not None
    assert overhead.num_windows == 0


def test_a_lean_window_that_was_tried_again_speaks_of_the_steps_that_it_has(tmp_path: Path) -> None:
    with running_session(tmp_path, DEFAULT_TRACE_STEPS) as session:
        train_and_compile(session, 9)
    (lean,) = open_run(tmp_path).get(TraceWindows).lean.values()
    assert lean.numbers == (12, 13)


def test_the_account_holds_what_windows_took_beside_their_steps(tmp_path: Path) -> None:
    began = time.thread_time()
    recorded = record_scheduled(tmp_path, 60)
    (cost,) = recorded.events(RecordingCost)
    assert 0 < cost.seconds["windows"] < time.thread_time() - began


def test_what_runs_on_a_device_counts_as_events_of_a_window() -> None:
    events = StepEvents()
    with SimulatedCuda().in_place():
        assert events.begin()
        train_plainly(2)
        events.end(1)
        on_host = {is_lean: events.in_window(1, is_lean=is_lean, skips_fetch=False) for is_lean in (False, True)}
        torch.cuda.init()
        on_device = {is_lean: events.in_window(1, is_lean=is_lean, skips_fetch=False) for is_lean in (False, True)}
    assert on_device[True] == 3 * on_host[True] > 0, "of each operator its launch and its kernel"
    assert on_device[False] > on_host[False]
