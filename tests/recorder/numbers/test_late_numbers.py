"""What a device tells late: numbers, times, and that it is there."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from efprof.artifacts.events import NonFiniteSeen, NumbersUnread, WindowOpened
from efprof.artifacts.steps import read_steps
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.recorder.session import session as session_module
from tests.recorder.recording import HARDLY_ANY_IN_FULL, record_here
from tests.recorder.training import error_of, make_loader, make_model, make_training, train_step
from tests.simulated_cuda.cuda import SimulatedCuda

NUM_STEPS = 24

HOUR_MS = 3_600_000.0


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with SimulatedCuda().in_place() as device:
        yield device


def train_on(cuda: SimulatedCuda, step_ms: float, then: Callable[[], object] = lambda: None) -> None:
    """Each forward pass gives the device work of this length; `then` is called after each step."""
    torch.manual_seed(0)
    model = make_model().to("cuda")
    model[0].register_forward_pre_hook(lambda *_: cuda.launch(step_ms))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in make_loader(NUM_STEPS):
        train_step(model, optimizer, inputs.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True))
        then()


@pytest.mark.parametrize("step_ms", [0, 5, 20])
def test_every_step_has_its_times_however_far_the_device_is_behind(
    step_ms: float, cuda: SimulatedCuda, tmp_path: Path
) -> None:
    recorded = record_here(tmp_path, lambda: train_on(cuda, step_ms))
    assert [step.step for step in recorded.steps] == list(range(NUM_STEPS))
    spans = [span for step in recorded.steps for span in step.spans]
    assert all(span.device_us is not None for span in spans)
    forward_us = [span.device_us or 0.0 for span in spans if span.stage == "forward"]
    assert min(forward_us) >= 1000 * step_ms


def test_a_killed_process_loses_no_step_to_a_device_that_is_behind(
    cuda: SimulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "MAX_WAIT_S", 0.01)
    num_read: list[int] = []

    def read() -> None:
        rank = tmp_path / "rank0"
        num_read.append(len(read_steps(rank)[0]) if (rank / "steps.jsonl").exists() else 0)

    record_here(tmp_path, lambda: train_on(cuda, HOUR_MS, read))
    assert all(count >= number for number, count in enumerate(num_read))


def test_a_device_that_never_answers_does_not_hold_the_end_up(
    cuda: SimulatedCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "MAX_WAIT_S", 0.01)
    recorded = record_here(tmp_path, lambda: train_on(cuda, HOUR_MS))
    assert [step.step for step in recorded.steps] == list(range(NUM_STEPS))
    assert all(span.device_us is None for step in recorded.steps for span in step.spans)
    assert all(step.loss is None for step in recorded.steps)


def test_a_device_that_starts_after_a_batch_was_looked_at_is_still_described(
    cuda: SimulatedCuda, tmp_path: Path
) -> None:
    def look_and_train() -> None:
        next(iter(make_loader(4)))
        train_on(cuda, 0)

    run = record_here(tmp_path, look_and_train).run
    assert [device.name for device in run.devices] == ["Simulated"]
    assert run.memory_source == "CUDA allocator"


def train_and_skip(
    device: str, step_ms: float = 0.0, launch: Callable[[float], None] = lambda _: None, num_steps: int = 80
) -> None:
    """The loss of step 60 is NaN, and applied by nobody."""
    torch.manual_seed(0)
    model, optimizer = make_training(device)
    for number, (inputs, targets) in enumerate(make_loader(num_steps)):
        loss = error_of(model, inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)) * (
            math.nan if number == 60 else 1.0
        )
        loss.backward(torch.full((), 0.5, device=device))  # by which it is multiplied there
        if number != 60:
            optimizer.step()
        optimizer.zero_grad()
        launch(step_ms)


@pytest.mark.parametrize("step_ms", [0, 10])
def test_the_losses_of_light_steps_come_from_a_device_without_waiting_for_it(
    step_ms: float, cuda: SimulatedCuda, tmp_path: Path
) -> None:
    bare = record_here(tmp_path / "cpu", lambda: train_and_skip("cpu"), overhead=HARDLY_ANY_IN_FULL)
    recorded = record_here(
        tmp_path / "cuda", lambda: train_and_skip("cuda", step_ms, cuda.launch), overhead=HARDLY_ANY_IN_FULL
    )
    light = {step.step: step.loss for step in recorded.steps if not step.is_full and step.step < 60}
    assert len(light) > 10
    assert light == {step.step: step.loss for step in bare.steps if step.step in light}
    assert [event.step for event in recorded.events(NonFiniteSeen)] == [60]
    assert cuda.waits_of("efprof/recorder") == []


def test_a_loss_that_a_device_tells_late_opens_a_window(cuda: SimulatedCuda, tmp_path: Path) -> None:
    def train() -> None:
        train_and_skip("cuda", num_steps=600)  # on a busy machine the device takes long to tell

    recorded = record_here(tmp_path, train, triggers=("non-finite",), overhead=HARDLY_ANY_IN_FULL)
    seen = [(event.step, event.what, event.value) for event in recorded.events(NonFiniteSeen)]
    assert seen == [(60, "loss", "nan")]
    assert [event.why for event in recorded.events(WindowOpened)] == ["a loss or gradient was not finite"]


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cpu", (0,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_loss_that_every_rank_has_whole_is_read_and_one_in_parts_is_told_of(
    device: str, tmp_path: Path, mesh: DeviceMesh, cuda: SimulatedCuda
) -> None:
    def train(placement: Placement) -> None:
        weight = torch.ones(4, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.25)
        for _ in range(3):
            optimizer.zero_grad()
            DTensor.from_local(weight.sum(), mesh, [placement], run_check=False).backward()
            optimizer.step()

    whole = record_here(tmp_path / "whole", lambda: train(Replicate()))
    assert [step.loss for step in whole.steps] == [4.0, 3.0, 2.0]
    assert [step.gradient_norm for step in whole.steps] == [2.0] * 3
    assert whole.events(NumbersUnread) == []
    in_parts = record_here(tmp_path / "parts", lambda: train(Partial()))
    assert [step.loss for step in in_parts.steps] == [None] * 3
    assert [step.gradient_norm for step in in_parts.steps] == [2.0] * 3, "what is late goes on"
    assert [event.what for event in in_parts.events(NumbersUnread)] == ["losses"]
    assert any("losses of this run are of type DTensor" in told for told in warnings_of(open_run(in_parts.folder)))


def test_of_several_losses_one_of_which_is_in_parts_none_is_told(tmp_path: Path, mesh: DeviceMesh) -> None:
    def train() -> None:
        weight = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.25)
        for _ in range(2):
            optimizer.zero_grad()
            torch.autograd.backward((DTensor.from_local(weight.sum(), mesh, [Partial()]), weight.sum()))
            optimizer.step()

    recorded = record_here(tmp_path, train)
    assert [step.loss for step in recorded.steps] == [None, None]
    assert [event.what for event in recorded.events(NumbersUnread)] == ["losses"]
