"""While a CUDA graph is captured, nothing of the recorder gets into it; and it looks again when the capture is over."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

import efprof
from efprof.artifacts.events import CollectorStopped
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS
from tests.recorder.recording import HARDLY_ANY_IN_FULL, Recorded, record_here, stages
from tests.recorder.training import error_of, make_loader, make_model
from tests.simulated_cuda.cuda import SimulatedCuda

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_STEPS = 30
Step = Callable[[torch.Tensor, torch.Tensor], None]
Between = Callable[[Step], object]


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with SimulatedCuda().in_place() as devices:
        yield devices


def train(between: Between, *, scales: bool = False) -> None:
    """A third and two thirds of the steps, and something between them that is given a function that makes one."""
    model = make_model().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=scales)  # a fused one skips by itself, unread
    scaler = torch.amp.GradScaler("cuda", enabled=scales)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        with efprof.stage("forward"):
            error = error_of(model, inputs, targets)
        scaler.scale(error).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)

    for number, (inputs, targets) in enumerate(make_loader(NUM_STEPS)):
        step(inputs.to("cuda"), targets.to("cuda"))
        if number == NUM_STEPS // 3 or number == NUM_STEPS - 5:
            between(step)


def recorded(folder: Path, between: Between, *, scales: bool = False) -> Recorded:
    """The first step to be captured is in full, the second one light."""
    torch.manual_seed(0)
    found = record_here(
        folder, lambda: train(between, scales=scales), overhead=HARDLY_ANY_IN_FULL, memory_steps=DEFAULT_MEMORY_STEPS
    )
    assert found.events(CollectorStopped) == []
    return found


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(4, 3, device="cuda"), torch.ones(4, 1, device="cuda")


def assert_all_steps_are_there(found: Recorded, *, num_updates: int = 2) -> None:
    steps = found.steps
    assert [one.micro_batches for one in steps] == [1] * NUM_STEPS
    assert all(isinstance(one.loss, float) for one in steps)
    usual = ["data", "forward", "backward", *["optimizer"] * num_updates]
    assert [stages(one)[-len(usual) :] for one in steps if one.is_full] == [usual] * sum(one.is_full for one in steps)
    assert all(span.device_us is not None for one in steps for span in one.spans)


def fail_to_begin(cuda: SimulatedCuda, _: Step) -> None:
    with cuda.captured_by_the_driver(), pytest.raises(RuntimeError, match="capturing"):
        torch.cuda.CUDAGraph().capture_begin()


def capture_within(_: SimulatedCuda, step: Step) -> None:
    batch, graph, other = make_batch(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="capturing"):
        other.capture_begin()
    step(*batch)
    graph.capture_end()


def capture_a_read(_: SimulatedCuda, step: Step) -> None:
    batch, graph = make_batch(), torch.cuda.CUDAGraph()
    graph.capture_begin()
    step(*batch)
    with suppress(RuntimeError):
        batch[0].sum().item()
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture_end()


def end_in_parts(_: SimulatedCuda, step: Step) -> None:
    """As a program may do that looks at the graph before it is instantiated."""
    batch, graph = make_batch(), torch.cuda.CUDAGraph()
    graph.capture_begin()
    step(*batch)
    for part in (graph.capture_end_pre, graph.instantiate, graph.capture_end_post):
        part()


needs_parts = pytest.mark.skipif(not hasattr(torch.cuda.CUDAGraph, "capture_end_pre"), reason="needs torch 2.14")


@pytest.mark.parametrize(
    "between", [fail_to_begin, capture_within, capture_a_read, pytest.param(end_in_parts, marks=needs_parts)]
)
def test_a_capture_that_cannot_begin_or_is_within_another_or_fails_or_ends_in_parts_stops_no_recording(
    between: Callable[[SimulatedCuda, Step], None], cuda: SimulatedCuda, tmp_path: Path
) -> None:
    assert_all_steps_are_there(recorded(tmp_path, partial(between, cuda)))


@pytest.mark.parametrize("scales", [False, True], ids=["plain", "scaled"])
def test_a_step_that_something_else_captures_has_nothing_of_ours_in_it_and_is_none(
    scales: bool, cuda: SimulatedCuda, tmp_path: Path
) -> None:
    sizes: list[int] = []

    def capture(step: Step) -> None:
        batch = make_batch()
        with cuda.captured_by_the_driver() as tape:
            step(*batch)
        assert not cuda.is_spoiled
        sizes.append(len(tape))

    torch.manual_seed(0)
    train(capture, scales=scales)
    found = recorded(tmp_path, capture, scales=scales)
    assert sizes[0] == sizes[1] == sizes[2] == sizes[3] > 0
    assert_all_steps_are_there(found, num_updates=3 if scales else 2)
