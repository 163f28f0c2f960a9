"""A training on a device that is not the current one, on several, on one that moves, and with other allocators."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.readings import read_device_use, read_evaluations
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.recorder.numbers import late_values
from efprof.recorder.numbers.late_values import LateValues, on_device
from efprof.recorder.windows import profiled_window
from efprof.recorder.windows.allocation_rows import WindowEvents
from efprof.units import MIB
from tests.recorder.recording import HARDLY_ANY_IN_FULL, Recorded, record_here
from tests.recorder.training import make_loader, make_model, make_training, train_step
from tests.simulated_cuda.cuda import SimulatedCuda

NUM_STEPS = 40

BOTH_KINDS = HARDLY_ANY_IN_FULL
"""The first twenty steps are in full, and most of the others light."""


pytestmark = pytest.mark.usefixtures("one_thread")


def train(device: str, num_steps: int = NUM_STEPS, after: Callable[[int], object] = lambda _: None) -> torch.nn.Module:
    """A model that is moved there; the current device stays as it was. `after` is called after each step."""
    torch.manual_seed(0)
    model, optimizer = make_training(device)
    for number, (inputs, targets) in enumerate(make_loader(num_steps)):
        train_step(model, optimizer, inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True))
        after(number)
    return model


def train_on_both(num_steps: int = NUM_STEPS) -> None:
    """One optimizer, whose parameters lie on two devices, with a loss on each: 3 and 5, of gradients 3 and 4."""
    first, second = (torch.ones(1, device=f"cuda:{index}").requires_grad_() for index in range(2))
    optimizer = torch.optim.SGD([first, second], lr=0.0)
    for _ in range(num_steps):
        optimizer.zero_grad()
        torch.autograd.backward([(first * 3.0).sum(), (second * 4.0).sum() + 1.0])
        optimizer.step()


def spans_without_device_times(recorded: Recorded) -> list[tuple[int, str]]:
    full = [step for step in recorded.steps if step.is_full]
    return [(step.step, span.stage) for step in full for span in step.spans if span.device_us is None]


def allocated(recorded: Recorded) -> list[int]:
    """The highest of each step in full."""
    return [max(here.allocated_bytes for here in step.memory) for step in recorded.steps if step.is_full]


# A device that is not the current one.


def test_a_device_that_is_not_current_is_recorded_and_no_other_is_touched(tmp_path: Path) -> None:
    bare = record_here(tmp_path / "cpu", lambda: train("cpu"), overhead=BOTH_KINDS).steps
    with SimulatedCuda(2).in_place() as cuda:
        recorded = record_here(tmp_path / "cuda", lambda: train("cuda:1"), overhead=BOTH_KINDS)
    assert cuda.contexts == {1}
    assert [(step.step, step.loss) for step in recorded.steps] == [(step.step, step.loss) for step in bare]
    assert min(allocated(recorded)) > 0
    assert spans_without_device_times(recorded) == []
    assert [reading.device for reading in read_device_use(recorded.rank)][:1] == [1]
    assert recorded.events(CollectorStopped) == []
    assert cuda.waits_of("efprof/recorder") == []


def test_the_device_that_the_training_is_on_is_described_first_and_alone_has_its_free_memory_told(
    tmp_path: Path,
) -> None:
    with SimulatedCuda(2).in_place():
        run = record_here(tmp_path, lambda: train("cuda:1", 3)).run
    assert [(device.index, device.free_bytes is not None) for device in run.devices] == [(1, True), (0, False)]
    assert run.memory_source == "CUDA allocator"


def test_a_loss_tells_which_of_two_devices_with_memory_the_training_is_on(tmp_path: Path) -> None:
    with SimulatedCuda(2).in_place():
        other = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda:0")
        recorded = record_here(tmp_path, lambda: train("cuda:1", 3))
        del other
    assert max(allocated(recorded)) < MIB
    assert recorded.run.devices[0].index == 1


def test_a_window_has_the_allocations_of_that_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[torch.device | None] = []

    def note(calls: Any, device: torch.device | None) -> WindowEvents:
        wanted.append(device)
        return WindowEvents(calls, device)

    monkeypatch.setattr(profiled_window, "WindowEvents", note)
    with SimulatedCuda(2).in_place():
        record_here(tmp_path, lambda: train("cuda:1", 8), windows=((5, 7),))
    assert wanted == [torch.device("cuda:1")]


def test_a_value_that_its_own_device_has_not_computed_yet_is_not_read(tmp_path: Path) -> None:
    bare = record_here(tmp_path / "cpu", lambda: train("cpu"), overhead=BOTH_KINDS).steps
    with SimulatedCuda(2).in_place() as cuda:
        recorded = record_here(
            tmp_path / "cuda", lambda: train("cuda:1", after=lambda _: cuda.launch(15, device=1)), overhead=BOTH_KINDS
        )
    assert [step.loss for step in recorded.steps] == [step.loss for step in bare]
    pairs = [(step.gradient_norm, one.gradient_norm) for step, one in zip(recorded.steps, bare, strict=True)]
    assert all(norm == pytest.approx(other) for norm, other in pairs if norm is not None and other is not None)


def test_a_value_is_copied_on_the_stream_that_makes_it(tmp_path: Path) -> None:
    """Each step runs on a stream of the program's own; it ends where the next batch is fetched, outside of that."""

    def train_aside(device: str) -> None:
        torch.manual_seed(0)
        model = make_model().to(device)
        optimizer, aside = torch.optim.SGD(model.parameters(), lr=0.01), torch.cuda.Stream()
        for inputs, targets in make_loader(NUM_STEPS):
            with torch.cuda.stream(aside):
                cuda.launch(15)
                train_step(
                    model, optimizer, inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
                )

    with SimulatedCuda().in_place() as cuda:
        bare = record_here(tmp_path / "cpu", lambda: train_aside("cpu"), overhead=BOTH_KINDS).steps
        recorded = record_here(tmp_path / "cuda", lambda: train_aside("cuda"), overhead=BOTH_KINDS)
    assert [step.loss for step in recorded.steps] == [step.loss for step in bare]
    norms = [step.gradient_norm for step in recorded.steps if step.is_full]
    assert norms[:20] == pytest.approx([step.gradient_norm for step in bare[:20]])
    assert recorded.events(CollectorStopped) == []


def test_a_process_that_has_begun_to_use_cuda_and_trains_on_the_cpu_has_the_memory_of_the_host(tmp_path: Path) -> None:
    with SimulatedCuda().in_place() as cuda:
        torch.cuda.init()
        recorded = record_here(tmp_path, lambda: train("cpu", 3))
    assert "CUDA" not in recorded.run.memory_source
    assert min(allocated(recorded)) > 0
    assert cuda.contexts == set()


# Several devices.


def test_a_program_that_changes_the_current_device_keeps_its_device_times(tmp_path: Path) -> None:
    with SimulatedCuda(2).in_place():
        recorded = record_here(
            tmp_path, lambda: train("cuda:0", after=lambda number: torch.cuda.set_device(int(number > NUM_STEPS // 2)))
        )
    assert recorded.events(CollectorStopped) == []
    assert spans_without_device_times(recorded) == []


def test_losses_and_gradients_on_two_devices_are_added_up(tmp_path: Path) -> None:
    with SimulatedCuda(2).in_place():
        recorded = record_here(tmp_path, train_on_both, overhead=BOTH_KINDS)
    assert [step.loss for step in recorded.steps] == [8.0] * NUM_STEPS
    assert {step.gradient_norm for step in recorded.steps if step.is_full} == {5.0}
    assert recorded.events(CollectorStopped) == []


def test_gradients_on_a_device_and_on_the_cpu_have_one_norm(tmp_path: Path) -> None:
    def train_offloaded() -> None:
        here, there = torch.ones(1, requires_grad=True), torch.ones(1, device="cuda").requires_grad_()
        optimizer = torch.optim.SGD([here, there], lr=0.0)
        for _ in range(4):
            optimizer.zero_grad()
            torch.autograd.backward([(here * 3.0).sum(), (there * 4.0).sum()])
            optimizer.step()

    with SimulatedCuda().in_place():
        recorded = record_here(tmp_path, train_offloaded)
    assert [step.gradient_norm for step in recorded.steps] == [5.0] * 4


# Other allocators, and devices that refuse.


def test_an_allocator_without_statistics_costs_the_memory_alone_and_that_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train_and_evaluate() -> None:
        model = train("cuda").eval()
        with torch.no_grad():
            for inputs, _ in make_loader(3):
                model(inputs.to("cuda", non_blocking=True))

    with SimulatedCuda(backend="pluggable").in_place():
        recorded = record_here(tmp_path, train_and_evaluate, overhead=BOTH_KINDS)
    assert [step.step for step in recorded.steps] == list(range(NUM_STEPS))
    assert all(isinstance(step.loss, float) for step in recorded.steps)
    assert [len(step.memory) for step in recorded.steps] == [0] * NUM_STEPS
    stopped = [event for event in recorded.events(CollectorStopped) if "Stats" in event.reason]
    assert [event.collector for event in stopped] == ["device_memory"]
    assert capsys.readouterr().err.count("does not yet support getDeviceStats") == 1
    assert [one.num_batches for one in read_evaluations(recorded.rank)] == [3]
    assert len([warning for warning in warnings_of(open_run(tmp_path)) if "'device_memory' stopped" in warning]) == 1


CALLS = ("current_stream", "mem_get_info", "get_device_properties", "Event", "current_device")
METHODS = ("Event.record", "Event.query", "Event.elapsed_time")


@pytest.mark.parametrize("call", [*CALLS, *METHODS])
@pytest.mark.parametrize("num_good", [0, 30], ids=["from the first call on", "later"])
def test_whatever_a_device_refuses_no_step_and_no_update_is_lost(
    call: str, num_good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SimulatedCuda().in_place():
        owner, _, name = call.rpartition(".")
        place: Any = torch.cuda.Event if owner else torch.cuda
        original, num_calls = getattr(place, name), 0

        def refuse(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls > num_good:
                raise RuntimeError("CUDA error: refused by a test")
            return original(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(place, name, refuse)
            recorded = record_here(tmp_path, lambda: train("cuda"), overhead=BOTH_KINDS)
    assert [step.step for step in recorded.steps] == list(range(NUM_STEPS))


# What it takes.


def test_pinned_memory_is_made_once_however_far_the_device_is_behind(tmp_path: Path) -> None:
    with SimulatedCuda().in_place() as cuda:
        recorded = record_here(tmp_path, lambda: train("cuda", after=lambda _: cuda.launch(10)), overhead=BOTH_KINDS)
    assert all(isinstance(step.loss, float) for step in recorded.steps)
    assert cuda.calls["cudaHostAlloc"] == 1


def test_values_that_are_sent_in_inference_mode_do_not_spoil_what_comes_later() -> None:
    with SimulatedCuda().in_place():
        late, value = LateValues(), torch.tensor(2.0, device="cuda")
        with torch.inference_mode():
            first = late.send([on_device(value)])
        second = late.send([on_device(value)])
        torch.cuda.synchronize()
        assert (first(), second()) == ([2.0], [2.0])


def test_events_are_used_again(tmp_path: Path) -> None:
    with SimulatedCuda().in_place() as cuda:
        record_here(tmp_path, lambda: train("cuda", after=lambda _: torch.cuda.synchronize()))
    assert cuda.calls["Event.record"] > 5 * NUM_STEPS
    assert cuda.calls["Event"] <= 30, "those of three steps"


def test_values_come_back_in_order_and_to_the_last_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_values, "ROW_SIZE", 4)
    monkeypatch.setattr(late_values, "NUM_ROWS", 2)
    with SimulatedCuda(2).in_place():
        late = LateValues()
        sent = [torch.tensor(float(number), device=f"cuda:{number % 2}") for number in range(9)]
        answers = [late.send(list(map(on_device, sent[:count]))) for count in (1, 3, 9, 2)]
        while not all(stream.query() for stream in map(torch.cuda.current_stream, range(2))):
            pass
        told = [answer() for answer in answers]
    assert told == [[0.0], [0.0, 1.0, 2.0], list(map(float, range(9))), [0.0, 1.0]]
    assert len(late._rows) == 6, "all that were made, three times two, are there to be used again"
