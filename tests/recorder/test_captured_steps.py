"""A step that was captured into a CUDA graph counts where the graph is replayed; on a simulated device."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, record_here
from tests.recorder.test_loop import BATCH, boundaries, error_of, make_loader, make_model, stages
from tests.simulated_cuda.cuda import SimulatedCuda

NUM_REPLAYS = 5

PLAIN = ["data", "forward", "backward", "optimizer"]

in_full_and_light = pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL], ids=["full", "light"])


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with SimulatedCuda().in_place() as device:
        yield device


def record(folder: Path, train: Callable[[], object], overhead: float = EVERY_STEP_IN_FULL) -> Recorded:
    recorded = record_here(folder, train, overhead=overhead)
    assert recorded.events(CollectorStopped) == []
    return recorded


def make_training() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = make_model().to("cuda")
    return model, torch.optim.SGD(model.parameters(), lr=0.01), torch.ones(BATCH, 3, device="cuda")


def make_step() -> Callable[[], None]:
    """One whole step of a model of its own."""
    model, optimizer, inputs = make_training()

    def step() -> None:
        model(inputs).sum().backward()
        optimizer.step()

    return step


def captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def test_capturing_is_no_step_and_each_replay_is_one(cuda: SimulatedCuda, tmp_path: Path) -> None:
    def train_by_graph() -> None:
        model, optimizer, inputs = make_training()
        for batch, targets in make_loader(3):
            optimizer.zero_grad()
            error_of(model, batch.to("cuda"), targets.to("cuda")).backward()
            optimizer.step()

        def step() -> None:
            error_of(model, inputs, inputs.sum(1, keepdim=True)).backward()
            optimizer.step()

        graph = captured(step)
        for _ in range(NUM_REPLAYS):
            graph.replay()

    recorded = record(tmp_path, train_by_graph)
    assert [stages(step) for step in recorded.steps[:3]] == [["data", *PLAIN], PLAIN, PLAIN]
    replays = recorded.steps[3:]
    assert [stages(step) for step in replays] == [[]] * NUM_REPLAYS, "the stages of a replay cannot be told apart"
    assert [(step.samples, step.micro_batches) for step in replays] == [(0, 1)] * NUM_REPLAYS
    assert [boundaries(step) for step in replays] == [["post_optimizer_step"]] * NUM_REPLAYS


def test_a_replay_for_each_batch_makes_steps_with_the_data_stage_alone(cuda: SimulatedCuda, tmp_path: Path) -> None:
    def train_by_replays() -> None:
        graphs = [captured(make_step()) for _ in range(2)]
        for _ in make_loader(NUM_REPLAYS):
            for graph in graphs:
                graph.replay()

    steps = record(tmp_path, train_by_replays).steps
    assert [stages(step) for step in steps] == [["data", "data"], *[["data"]] * (NUM_REPLAYS - 1)]
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH, 2)] * NUM_REPLAYS


def test_a_replay_is_no_part_of_the_last_step_that_ran_by_itself(cuda: SimulatedCuda, tmp_path: Path) -> None:
    def train_without_a_loader() -> None:
        step = make_step()
        for _ in range(3):
            step()
        graph = captured(step)
        for _ in range(NUM_REPLAYS):
            graph.replay()

    steps = record(tmp_path, train_without_a_loader).steps
    assert [stages(step) for step in steps] == [PLAIN[1:]] * 3 + [[]] * NUM_REPLAYS
    assert [step.micro_batches for step in steps] == [1] * (3 + NUM_REPLAYS)


def test_a_graph_without_an_optimizers_step_ends_none(cuda: SimulatedCuda, tmp_path: Path) -> None:
    def train_and_replay() -> None:
        model, optimizer, inputs = make_training()

        def forward() -> None:
            model(inputs)

        graph = captured(forward)
        for batch, targets in make_loader(4):
            graph.replay()
            error_of(model, batch.to("cuda"), targets.to("cuda")).backward()
            optimizer.step()

    steps = record(tmp_path, train_and_replay).steps
    assert [stages(step) for step in steps] == [["data", *PLAIN], PLAIN, PLAIN, PLAIN]
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH, 1)] * 4


@in_full_and_light
def test_steps_go_on_after_a_capture_that_could_not_begin(cuda: SimulatedCuda, overhead: float, tmp_path: Path) -> None:
    def train() -> None:
        step = make_step()
        for _ in range(25):
            step()
        with pytest.raises(RuntimeError, match="non-default stream"):
            torch.cuda.CUDAGraph().capture_begin()
        for _ in range(20):
            step()

    assert len(record(tmp_path, train, overhead).steps) == 45


@in_full_and_light
def test_steps_go_on_after_a_capture_within_a_capture(cuda: SimulatedCuda, overhead: float, tmp_path: Path) -> None:
    def train() -> None:
        step = make_step()
        for _ in range(25):
            step()

        def step_twice() -> None:
            with pytest.raises(RuntimeError, match="not permitted"):
                torch.cuda.CUDAGraph().capture_begin()
            step()

        graph = captured(step_twice)
        for _ in range(20):
            graph.replay()

    assert len(record(tmp_path, train, overhead).steps) == 45


@in_full_and_light
def test_a_capture_that_nobody_tells_of_is_not_broken(cuda: SimulatedCuda, overhead: float, tmp_path: Path) -> None:
    """As a library of its own makes it, or torch's in C++: the recorder does nothing that a capture does not survive."""

    @contextlib.contextmanager
    def capturing() -> Iterator[None]:
        cuda.capturing, cuda.is_spoiled = object(), False
        yield
        cuda.capturing = None

    def train() -> None:
        step = make_step()
        for number in range(30):
            if number in (2, 10, 28):
                with capturing():
                    step()
                assert not cuda.is_spoiled
            step()

    recorded = record(tmp_path, train, overhead)
    assert recorded.steps[-1].step >= 29
    assert not any(isinstance(step.loss, str) for step in recorded.steps)
    assert cuda.waits_of("efprof/recorder") == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_counts_at_each_replay_on_a_device(tmp_path: Path) -> None:
    def train_by_real_graph() -> None:
        model = torch.nn.Linear(3, 1, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = torch.ones(BATCH, 3, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(inputs).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(inputs).sum().backward()
            optimizer.step()
        for _ in range(NUM_REPLAYS):
            graph.replay()

    recorded = record_here(tmp_path, train_by_real_graph)
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 3 + NUM_REPLAYS
