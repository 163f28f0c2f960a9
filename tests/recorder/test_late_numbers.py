"""What a device tells late, numbers and times or itself, by one that is pretended and answers when it likes."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from efprof.artifacts.events import NonFiniteSeen, WindowOpened
from efprof.artifacts.run_file import write_run_file
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.recorder import light_steps, memory, step_numbers
from efprof.recorder import session as session_module
from efprof.recorder.collectors import environment, numbers
from efprof.recorder.device_clock import DeviceClock
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session
from efprof.recorder.step_numbers import StepNumbers, late_numbers
from tests.builders import GPU, make_run_file, make_step
from tests.recorder.recording import HARDLY_ANY_IN_FULL, Recorded, open_session, record_here
from tests.recorder.test_loop import error_of, make_loader, make_model, train

NUM_STEPS = 24


class Device:
    """Has passed an event once it was let go on for `behind` further steps."""

    def __init__(self, behind: float) -> None:
        self.behind = behind
        self.step = 0
        self.num_events = 0

    def event(self) -> SimpleNamespace:
        self.num_events += 1
        made = SimpleNamespace(recorded=None)
        made.record = lambda: setattr(made, "recorded", self.step)
        made.query = lambda: self.step >= made.recorded + self.behind
        made.elapsed_time = lambda end: 1.0 + end.recorded - made.recorded
        return made


def record_on(device: Device, folder: Path, then: Callable[[Session], None] = lambda _: None) -> Recorded:
    """Record a training whose stages a pretended device times; `then` is called after each step."""
    session = open_session(folder)
    session.start()
    session.loop.steps.clock = DeviceClock(device.event)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in make_loader(NUM_STEPS):
        error_of(model, *batch).backward()
        optimizer.step()
        device.step += 1
        then(session)
    device.behind = min(device.behind, 0.0) if math.isfinite(device.behind) else device.behind
    session.end()
    return Recorded(folder=folder)


@pytest.mark.parametrize("behind", [1, 10, 20])
def test_every_step_has_its_times_however_far_the_device_is_behind(behind: int, tmp_path: Path) -> None:
    device = Device(behind)
    recorded = record_on(device, tmp_path)
    assert [step.step for step in recorded.steps] == list(range(NUM_STEPS))
    spans = [span for step in recorded.steps for span in step.spans]
    assert all(span.device_us == 1000.0 for span in spans)
    assert device.num_events <= 2 * 4 * (behind + 2), "events that were read are used again"


def test_a_killed_process_loses_no_step_to_a_device_that_is_behind(tmp_path: Path) -> None:
    num_read: list[int] = []

    def read(session: Session) -> None:
        path = session.rank_folder
        num_read.append(len(read_steps(path)[0]) if (path / "steps.jsonl").exists() else 0)

    record_on(Device(10), tmp_path, then=read)
    assert all(count >= number for number, count in enumerate(num_read))


def test_a_device_that_never_answers_does_not_hold_the_end_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_WAIT_S", 0.01)
    recorded = record_on(Device(math.inf), tmp_path)
    assert [step.step for step in recorded.steps] == list(range(NUM_STEPS))
    assert all(span.device_us is None for step in recorded.steps for span in step.spans)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Numbers lie on a pretended device."""
    device = Device(2)

    def copied(values: list[torch.Tensor]) -> tuple[list[torch.Tensor], SimpleNamespace]:
        event = device.event()
        event.record()
        return [value.clone() for value in values], event

    monkeypatch.setattr(step_numbers, "copied", copied)
    monkeypatch.setattr(light_steps, "copied", copied)
    return device


def arrive(device: Device, record: StepRecord, *, losses: list[float], norms: list[float], **owed: bool) -> list[str]:
    """Have the numbers arrive two steps later; what is told of as bad."""
    bad: list[str] = []
    opened = StepNumbers(
        device_losses=tuple(map(torch.tensor, losses)), device_norms=tuple(map(torch.tensor, norms)), **owed
    )
    arrives = late_numbers(record, opened, torch.tensor(512.0), lambda _, what, value: bad.append(what))
    assert not arrives()
    assert record.loss is None
    device.step += 2
    assert arrives()
    return bad


def test_numbers_fill_the_record_when_they_arrive(copies: Device) -> None:
    record = make_step(0, loss=None, gradient_norm=None)
    assert arrive(copies, record, losses=[1.5, 2.0], norms=[3.0, 4.0]) == []
    assert (record.loss, record.gradient_norm, record.scaler_scale) == (3.5, 5.0, 512.0)


class Elsewhere(torch.Tensor):
    """Says that it lies on a device."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False


def test_a_loss_on_a_device_is_multiplied_there_by_the_gradient_that_backward_is_given(
    tmp_path: Path, copies: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "answers_late", lambda _: True)
    copies.behind = 0

    def train_on_it() -> None:
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for given in (None, torch.tensor(-0.5)):
            (weight * 3.0).sum().as_subclass(Elsewhere).backward(given)
            optimizer.step()

    assert [step.loss for step in record_here(tmp_path, train_on_it).steps] == [3.0, -1.5]


def test_a_loss_that_is_not_finite_is_told_of(copies: Device) -> None:
    record = make_step(0, loss=None, gradient_norm=None)
    assert arrive(copies, record, losses=[math.nan], norms=[math.nan]) == ["loss"]
    assert (record.loss, record.gradient_norm) == ("nan", "nan")


def test_a_gradient_that_nobody_guards_is_told_of(copies: Device) -> None:
    assert arrive(copies, make_step(0, loss=None), losses=[1.0], norms=[math.inf]) == ["gradient"]
    assert arrive(copies, make_step(1, loss=None), losses=[1.0], norms=[math.inf], is_guarded=True) == []
    assert arrive(copies, make_step(2, loss=None, is_skipped=True), losses=[1.0], norms=[math.inf]) == []


def test_what_a_device_tells_late_is_an_event_and_opens_a_window(tmp_path: Path, copies: Device) -> None:
    session = open_session(tmp_path)
    session.options = msgspec.structs.replace(session.options, triggers=("non-finite",))
    session.start()
    made = numbers.Numbers(session)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(make_loader(12)):
        error_of(model, *batch).backward()
        optimizer.step()
        if number == 4:
            step = session.loop.step
            assert isinstance(step, OpenStep)
            bad = StepNumbers(device_losses=(torch.tensor(math.inf),))
            record = make_step(step.number, loss=None)
            step.owe(late_numbers(record, bad, None, made._note_late))
        copies.step += 1
    session.end()
    recorded = Recorded(folder=tmp_path)
    assert [(event.step, event.what, event.value) for event in recorded.events(NonFiniteSeen)] == [(4, "loss", "inf")]
    assert [event.why for event in recorded.events(WindowOpened)] == ["a loss or gradient was not finite"]


def test_a_device_that_starts_after_a_batch_was_looked_at_is_still_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_cuda = False
    monkeypatch.setattr(environment, "_has_cuda", lambda: has_cuda)
    monkeypatch.setattr(environment, "_devices", lambda: [GPU] if has_cuda else [])
    monkeypatch.setattr(environment, "_versions", dict)
    monkeypatch.setattr(environment, "_settings", dict)
    host, device = ("C allocator (malloc)", lambda: (7, 8)), ("CUDA allocator", lambda: (5000, 6000, 1, 2, 3))
    monkeypatch.setattr(memory, "_best_source", lambda: device if has_cuda else host)

    def look_and_train() -> None:
        nonlocal has_cuda
        loader = make_loader(4)
        next(iter(loader))
        has_cuda = True
        model = make_model()
        train(model, loader, torch.optim.SGD(model.parameters(), lr=0.01))

    write_run_file(tmp_path, make_run_file())
    recorded = record_here(tmp_path, look_and_train)
    assert recorded.run.devices == [GPU]
    assert recorded.run.memory_source == "CUDA allocator"
    assert {here.allocated_bytes for step in recorded.steps for here in step.memory} == {5000}


@pytest.mark.parametrize("behind", [1, 30])
def test_the_losses_of_light_steps_come_from_a_device_without_waiting_for_it(
    behind: int, tmp_path: Path, copies: Device
) -> None:
    copies.behind = behind
    session = open_session(tmp_path, overhead=HARDLY_ANY_IN_FULL)
    session.start()
    session.loop.light.steps.read_loss = lambda _, loss, __: loss.detach().clone()
    model, losses = make_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, batch in enumerate(make_loader(80)):
        loss = error_of(model, *batch) * (math.nan if number == 60 else 1.0)
        loss.backward()
        losses.append(loss.item())
        if number != 60:
            optimizer.step()
        optimizer.zero_grad()
        copies.step += 1
    copies.behind = 0
    copies.step += 100
    session.end()
    recorded = Recorded(folder=tmp_path)
    light = {step.step: step.loss for step in recorded.steps if not step.is_full and step.step < 60}
    assert len(light) > 10
    assert light == {number: losses[number] for number in light}
    assert [event.step for event in recorded.events(NonFiniteSeen)] == [60]
