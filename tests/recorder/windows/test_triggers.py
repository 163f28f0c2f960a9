"""Windows that nobody scheduled: what calls for one, and when none may open."""

import math
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, WindowClosed, WindowOpened
from efprof.artifacts.steps import BoundaryMemory, StepRecord
from efprof.recorder.budget.sampling import Budget, Sampling
from efprof.recorder.session.options import ALL_TRIGGERS, Trigger
from efprof.recorder.session.session import Session
from efprof.recorder.windows.triggers import MemoryPeaks, WindowRequests
from tests.recorder.conftest import Begin
from tests.recorder.recording import Recorded, open_session
from tests.recorder.training import error_of, make_loader, make_training

MIB = 1024**2

pytestmark = pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")


def make_record(number: int, *, ms: float = 100.0, mib: float = 50.0, window: str | None = None) -> StepRecord:
    return StepRecord(
        step=number, started_ns=0, total_us=ms * 1000, spans=[],
        memory=[BoundaryMemory("post_optimizer_step", 0.0, int(mib * MIB), 0)],
        cpu_us=0.0, rss_bytes=0, micro_batches=1, samples=1, recorder_us=0.0, window=window,
    )  # fmt: skip


def make_triggers(wanted: Sequence[Trigger] = ALL_TRIGGERS, asked: Sequence[str] = ()) -> WindowRequests:
    triggers = WindowRequests(wanted, Budget(0.01), Sampling(0.01))
    triggers.asked += asked
    return triggers


def note(triggers: WindowRequests, record: StepRecord) -> None:
    """As a step that is over is told to both."""
    if record.window is None:
        triggers._sampling.note_full(record.step, round(1000 * record.total_us), 0)
    triggers.note(record)


def slow_one(times_ms: Sequence[float]) -> str | None:
    """Why a window is to open, with three steps of a tenth of a second before these."""
    triggers = make_triggers(("slow-step",))
    for number, ms in enumerate([100.0] * 3 + list(times_ms)):
        note(triggers, make_record(number, ms=ms))
    return triggers.take(1000, [])


def peaks(sizes_mib: Sequence[float], numbers: Sequence[int] | None = None) -> list[int]:
    rule = MemoryPeaks()
    readings = zip(numbers or range(len(sizes_mib)), sizes_mib, strict=True)
    return [number for number, mib in readings if rule.rise(number, int(mib * MIB)) is not None]


@pytest.mark.parametrize(
    ("times_ms", "why"),
    [
        ([100.0] * 30 + [240.0, 100.0, 300.0], "step 33 took 2.4 times the median"),
        ([100.0] * 30 + [199.0], None),
        ([100.0] * 19 + [500.0], None),
        ([2.0] * 30 + [20.0], None),
        ([100.0] * 30 + [190.0] * 60 + [250.0], None),
    ],
    ids=[
        "twice the median",
        "less than that",
        "fewer than twenty before it",
        "short, and held up by the scheduler",
        "in a run that became slower for good",
    ],
)
def test_a_step_of_twice_the_median_is_slow_where_twenty_are_known_and_it_is_long(
    times_ms: list[float], why: str | None
) -> None:
    assert slow_one(times_ms) == why


@pytest.mark.parametrize(
    ("sizes_mib", "found"),
    [
        ([50.0] * 30 + [60.0] + [50.0] * 5 + [60.0] * 5, [30]),
        ([50.0] * 30 + [52.0], []),
        ([5.0] * 30 + [5.9], []),
        ([0.0] * 30 + [60.0, 60.0, 90.0], [32]),
        ([10.0 * number for number in range(1, 20)] + [500.0] + [500.0] * 10, []),
    ],
    ids=["once", "a few percent", "below a mebibyte", "nothing to rise above", "within the first twenty steps"],
)
def test_more_memory_than_any_step_before_is_a_peak_where_the_rise_is_large(
    sizes_mib: list[float], found: list[int]
) -> None:
    assert peaks(sizes_mib) == found


def test_growth_from_step_to_step_is_no_peak_even_where_few_steps_are_read() -> None:
    numbers = [*range(21), *range(120, 2000, 100)]
    assert peaks([10.0 + number for number in numbers], numbers) == []


def test_a_peak_is_seen_even_right_after_a_small_rise() -> None:
    numbers = [*range(21), 120]
    assert peaks([50.0] * 20 + [50.01, 60.0], numbers) == [120]


def test_the_first_steps_and_those_of_windows_are_no_measure() -> None:
    triggers = make_triggers()
    for number in range(60):
        is_early, is_in_window = number < 3, 40 <= number < 42
        is_unlike = is_early or is_in_window or number == 42
        window = "trace-1" if is_in_window else None
        note(
            triggers,
            make_record(number, ms=900.0 if is_unlike else 100.0, mib=90.0 if is_unlike else 50.0, window=window),
        )
    assert triggers.asked == []


def test_what_a_person_asks_for_goes_first() -> None:
    triggers = make_triggers(asked=["non-finite", "signal"])
    assert triggers.take(41, []) == "SIGUSR1 asked for it"
    assert triggers.asked == ["non-finite"]


def test_a_kind_that_was_not_wanted_opens_nothing() -> None:
    triggers = make_triggers(("signal",), ["non-finite", "signal"])
    for number in range(40):
        note(triggers, make_record(number))
    note(triggers, make_record(40, ms=240.0, mib=60.0))
    assert [triggers.take(41, []), triggers.take(41, [])] == ["SIGUSR1 asked for it", None]


@pytest.mark.parametrize(("kind", "most"), [("slow-step", 1), ("memory-peak", 1), ("non-finite", 1), ("signal", 5)])
def test_each_kind_opens_a_bounded_number_of_windows(kind: Trigger, most: int) -> None:
    triggers = make_triggers()
    granted = 0
    for number in range(2000):
        is_odd_one_out = number % 100 == 99
        note(
            triggers,
            make_record(
                number,
                ms=500.0 if is_odd_one_out and kind == "slow-step" else 100.0,
                mib=50.0 * 1.1 ** (number // 100) if kind == "memory-peak" else 50.0,
            ),
        )
        if is_odd_one_out and kind in ("signal", "non-finite"):
            triggers.asked.append(kind)
        granted += triggers.take(number + 1, []) is not None
    assert granted == most


def test_a_request_waits_until_it_is_ten_steps_from_every_window() -> None:
    triggers = make_triggers(("signal",), ["signal"])
    note(triggers, make_record(50, window="trace-1"))
    granted = [number for number in range(51, 200) if triggers.take(number, [(72, 74)]) is not None]
    assert granted == [84]
    triggers.asked.append("signal")
    assert triggers.take(60, [(72, 74)]) is None
    assert triggers.take(61, [(73, 75)]) is not None


def record_triggered(
    folder: Path,
    train: Callable[[Session], object],
    triggers: tuple[Trigger, ...],
    windows: tuple[tuple[int, int], ...] = (),
) -> Recorded:
    """Record `train`, which is given the session, with these triggers."""
    session = open_session(folder, windows, triggers=triggers)
    session.start()
    try:
        train(session)
    finally:
        session.end()
    return Recorded(folder=folder)


def train_with(before_update: Callable[[int], object], num_steps: int) -> None:
    model, optimizer = make_training()
    for number, (inputs, targets) in enumerate(make_loader(num_steps)):
        optimizer.zero_grad()
        error_of(model, inputs, targets).backward()
        before_update(number)
        optimizer.step()


def windowed(recorded: Recorded) -> list[int]:
    """The steps in a profiler's window; those whose lines were watched, or calls counted, are in none."""
    return [step.step for step in recorded.steps if step.window and step.window.startswith("trace")]


def test_a_slow_step_opens_one_window_of_two_steps_after_it(tmp_path: Path) -> None:
    def dawdle(number: int) -> None:
        time.sleep(0.5 if number in (25, 45) else 0.0)

    recorded = record_triggered(tmp_path, lambda _: train_with(dawdle, 50), ("slow-step",))
    (opened,) = recorded.events(WindowOpened)
    assert opened.step <= 27, "a busy machine may have made an earlier step slow"
    assert opened.why.startswith(f"step {opened.step - 2} took "), "in between a step's calls are counted"
    assert opened.why.endswith(" times the median")
    assert windowed(recorded) == [opened.step, opened.step + 1]
    (closed,) = recorded.events(WindowClosed)
    assert closed.files == ["trace-1.json.gz", "sites-1.parquet", "allocations-1.parquet"]


LEAVES_MORE = """
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for number in range(400):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    if number == 30:
        kept.append(torch.ones(32 * 1024**2))
"""


def test_a_step_that_leaves_more_memory_opens_a_window(begin: Begin) -> None:
    child = begin(LEAVES_MORE, triggers=("memory-peak",))
    assert child.wait() == 0, child.errors
    recorded = Recorded(folder=child.folder)
    (opened,) = recorded.events(WindowOpened)
    assert opened.step > 30, "as soon as memory is read again, which not every step can afford"
    assert opened.why.endswith(" more memory allocated than any before it")
    assert windowed(recorded) == [opened.step, opened.step + 1]


def test_a_signal_opens_a_window_and_the_schedule_is_kept(tmp_path: Path) -> None:
    def train(_: Session) -> None:
        train_with(lambda number: signal.raise_signal(signal.SIGUSR1) if number == 0 else None, 30)

    recorded = record_triggered(tmp_path, train, ("signal",), windows=((3, 5), (27, 28)))
    assert [(event.step, event.why) for event in recorded.events(WindowOpened)] == [
        (3, "schedule"), (15, "SIGUSR1 asked for it"), (27, "schedule"),
    ]  # fmt: skip


def test_no_trigger_interrupts_a_program_that_profiles_itself(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        session.window_requests.asked.append("signal")
        with torch.profiler.profile():
            train_with(lambda _: None, 5)
        train_with(lambda _: None, 5)

    recorded = record_triggered(tmp_path, train, ("signal",))
    assert recorded.events(CollectorStopped) == []
    assert windowed(recorded) == [5, 6]


@pytest.mark.parametrize(
    ("trigger", "why", "first"),
    [("non-finite", "a loss or gradient was not finite", 122), ("signal", "SIGUSR1 asked for it", 121)],
    ids=["non-finite, after a step whose calls are counted", "signal"],
)
def test_light_steps_end_for_a_window_that_is_asked_for(tmp_path: Path, trigger: Trigger, why: str, first: int) -> None:
    def train(_: Session) -> None:
        model, optimizer = make_training()
        for number, batch in enumerate(make_loader(200)):
            optimizer.zero_grad()
            is_it = number == 120
            error = error_of(model, *batch) * (math.nan if is_it and trigger == "non-finite" else 1.0)
            error.backward()
            if is_it and trigger == "signal":
                signal.raise_signal(signal.SIGUSR1)
            optimizer.step()

    recorded = record_triggered(tmp_path, train, (trigger,))
    assert [(event.step, event.why) for event in recorded.events(WindowOpened)] == [(first, why)]
    assert windowed(recorded) == [first, first + 1]
