"""The simulated device does what CUDA documents, and the recorder's own GPU path runs on it."""

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, record_here, stages
from tests.recorder.training import make_loader, make_training, train_step
from tests.simulated_cuda.cuda import SimulatedCuda
from tests.simulated_cuda.operators import GARBAGE

NUM_STEPS = 40

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with SimulatedCuda(2).in_place() as devices:
        yield devices


def train(device: str) -> None:
    torch.manual_seed(0)
    model, optimizer = make_training(device)
    for inputs, targets in make_loader(NUM_STEPS):
        train_step(model, optimizer, inputs.to(device), targets.to(device))


def recorded_on(device: str, folder: Path, overhead: float) -> Recorded:
    return record_here(folder, lambda: train(device), overhead=overhead, memory_steps=DEFAULT_MEMORY_STEPS)


@pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL])
def test_a_training_is_recorded_as_on_the_cpu_and_nothing_waits_for_the_device(overhead: float, tmp_path: Path) -> None:
    bare = recorded_on("cpu", tmp_path / "cpu", overhead).steps
    with SimulatedCuda().in_place() as cuda:
        recording = recorded_on("cuda", tmp_path / "cuda", overhead)
    steps = recording.steps
    assert [(one.step, one.loss, one.micro_batches) for one in steps] == [
        (one.step, one.loss, one.micro_batches) for one in bare
    ]
    in_full = [(one, other) for one, other in zip(steps, bare, strict=True) if one.is_full and other.is_full]
    assert [stages(one) for one, _ in in_full] == [stages(other) for _, other in in_full]
    full = [one for one in steps if one.is_full]
    assert all(span.device_us is not None for one in full for span in one.spans)
    assert all(here.reserved_bytes > 0 for one in full for here in one.memory)
    norms = [one.gradient_norm for one, _ in in_full]
    assert norms == pytest.approx([other.gradient_norm for _, other in in_full])
    assert recording.events(CollectorStopped) == []
    assert cuda.waits_of("efprof/recorder") == []


def test_a_program_that_trains_on_the_host_has_no_cuda_started_by_the_recorder(
    cuda: SimulatedCuda, tmp_path: Path
) -> None:
    recording = recorded_on("cpu", tmp_path, EVERY_STEP_IN_FULL)
    assert len(recording.steps) == NUM_STEPS
    assert not torch.cuda.is_initialized()
    assert cuda.contexts == set()
    assert cuda.waits == []


@pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL])
def test_a_device_that_breaks_down_ends_the_training_with_its_own_error_and_keeps_the_steps(
    overhead: float, cuda: SimulatedCuda, tmp_path: Path
) -> None:
    """As after an illegal access, when every call fails."""

    def train_and_break() -> None:
        model, optimizer = make_training("cuda")
        for number, batch in enumerate(make_loader(NUM_STEPS)):
            if number == NUM_STEPS - 5:
                cuda.break_down()
            train_step(model, optimizer, *(one.to("cuda") for one in batch))

    with pytest.raises(RuntimeError, match="illegal memory access") as raised:
        record_here(tmp_path, train_and_break, overhead=overhead, memory_steps=DEFAULT_MEMORY_STEPS)
    assert "efprof" not in str(raised.traceback[-1].path)
    steps = Recorded(folder=tmp_path).steps
    assert [one.step for one in steps[:-1]] == list(range(len(steps) - 1))
    assert len(steps) >= NUM_STEPS - 5


def test_what_is_made_of_a_tensor_lies_where_it_does(cuda: SimulatedCuda) -> None:
    there = torch.ones(3, device="cuda:1")
    assert (there * 2 + 1).device == torch.device("cuda:1")
    assert there.cpu().device.type == "cpu"
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(3, device="cuda:0")


def test_a_gradient_lies_where_its_parameter_does_and_autograd_waits_for_nothing(cuda: SimulatedCuda) -> None:
    weight = torch.ones(3, device="cuda:1", requires_grad=True)
    weight.sum().backward()  # whose gradient is one number, expanded, that autograd copies
    assert weight.grad is not None
    assert weight.grad.device == weight.device
    assert cuda.waits == []


def test_a_copy_to_the_host_arrives_when_the_device_has_come_to_it(cuda: SimulatedCuda) -> None:
    value, target = torch.tensor(0.25, device="cuda"), torch.empty((), pin_memory=True)
    cuda.launch(3000)
    target.copy_(value, non_blocking=True)
    assert target.item() == GARBAGE
    arrived = torch.cuda.Event()
    arrived.record()
    assert not arrived.query()
    arrived.synchronize()
    assert target.item() == 0.25


@pytest.mark.parametrize("waits", [False, True])
def test_a_stream_that_does_not_wait_for_another_computes_with_what_that_has_not_made_yet(
    waits: bool, cuda: SimulatedCuda
) -> None:
    aside, batch = torch.cuda.Stream(), torch.full((3,), 0.25).pin_memory()
    with torch.cuda.stream(aside):
        cuda.launch(50 if waits else 3000)
        fetched = batch.to("cuda", non_blocking=True)
    if waits:
        torch.cuda.current_stream().wait_stream(aside)
    doubled, target = fetched * 2, torch.empty((), pin_memory=True)
    target.copy_(fetched[0], non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert target.item() == (0.25 if waits else GARBAGE)
    made = [doubled.sum().item(), doubled.tolist(), torch.empty(3).copy_(fetched).tolist()]
    assert made == ([1.5, [0.5] * 3, [0.25] * 3] if waits else [GARBAGE, [GARBAGE] * 3, [GARBAGE] * 3])


def test_a_thread_has_the_devices_too_and_a_forked_process_has_none(cuda: SimulatedCuda) -> None:
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(3, device="cuda") * 2))
    thread.start()
    thread.join()
    assert made[0].device == torch.device("cuda:0")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(make_on, (None,)) == "cpu"
        with pytest.raises(RuntimeError, match="forked subprocess"):
            pool.apply(make_on, ("cuda",))


def make_on(device: str | None) -> str:
    return str(torch.ones(3, device=device).device)


def test_a_value_that_is_asked_for_waits_for_the_device(cuda: SimulatedCuda) -> None:
    value = torch.tensor(1.0, device="cuda")
    cuda.launch(500)
    assert value.item() == 1.0
    assert torch.cuda.current_stream().query(), "it has done all that it was given"
    assert cuda.waits_of(__file__)


def test_a_graph_does_again_what_was_captured_and_a_capture_permits_no_wait(cuda: SimulatedCuda) -> None:
    inputs, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    graph.capture_begin()
    doubled = inputs * 2
    graph.capture_end()
    inputs.fill_(3.0)
    graph.replay()
    assert doubled.tolist() == [6.0] * 3
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="capturing"):
        inputs.sum().item()
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()
