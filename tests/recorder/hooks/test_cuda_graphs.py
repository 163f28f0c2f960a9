"""A step that was captured into a CUDA graph counts where the graph is replayed; on a CPU a pretended graph."""

from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from tests.recorder.recording import PLAIN, UPDATE, boundaries, record_here, stages
from tests.recorder.training import BATCH, make_loader, make_model, make_training, train, train_step

NUM_REPLAYS = 5


class PretendedGraph:
    """Runs nothing: what is captured into it is run at once, as its values do not matter here."""

    def capture_begin(self, *_: object) -> None: ...

    def capture_end(self) -> None:
        self.capture_end_pre()

    def capture_end_pre(self) -> None: ...

    def replay(self) -> None: ...


@pytest.fixture
def _pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)


def captured(model: torch.nn.Module) -> PretendedGraph:
    """A whole step of this model."""
    graph, optimizer = PretendedGraph(), torch.optim.SGD(model.parameters(), lr=0.01)
    graph.capture_begin()
    model(torch.ones(BATCH, 3)).sum().backward()
    optimizer.step()
    graph.capture_end()
    return graph


def train_by_graph(graph: torch.cuda.CUDAGraph, *, has_loader: bool) -> None:
    """A few steps as usual, one captured, and the rest by replaying it."""
    model, optimizer = make_training()
    loader = make_loader(3)
    train(model, loader if has_loader else list(loader), optimizer)
    inputs = torch.ones(BATCH, 3)
    graph.capture_begin()
    train_step(model, optimizer, inputs, inputs.sum(1, keepdim=True))
    graph.capture_end()
    for _ in range(NUM_REPLAYS):
        graph.replay()


@pytest.mark.usefixtures("_pretended")
@pytest.mark.parametrize("has_loader", [True, False])
def test_capturing_is_no_step_and_each_replay_is_one(has_loader: bool, tmp_path: Path) -> None:
    recorded = record_here(tmp_path, lambda: train_by_graph(PretendedGraph(), has_loader=has_loader))
    assert recorded.events(CollectorStopped) == []
    assert [stages(step) for step in recorded.steps[:3]] == (
        [["data", *PLAIN], PLAIN, PLAIN] if has_loader else [UPDATE] * 3
    )
    replays = recorded.steps[3:]
    assert [stages(step) for step in replays] == [[]] * NUM_REPLAYS, "the stages of a replay cannot be told apart"
    assert [(step.samples, step.micro_batches) for step in replays] == [(0, 1)] * NUM_REPLAYS
    assert [boundaries(step) for step in replays] == [["post_optimizer_step"]] * NUM_REPLAYS


@pytest.mark.usefixtures("_pretended")
def test_a_replay_for_each_batch_makes_steps_with_the_data_stage_alone(tmp_path: Path) -> None:
    def train_by_replays() -> None:
        graphs = [captured(make_model()) for _ in range(2)]
        for _ in make_loader(NUM_REPLAYS):
            for graph in graphs:
                graph.replay()

    steps = record_here(tmp_path, train_by_replays).steps
    assert [stages(step) for step in steps] == [["data", "data"], *[["data"]] * (NUM_REPLAYS - 1)]
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH, 2)] * NUM_REPLAYS


@pytest.mark.usefixtures("_pretended")
def test_a_graph_without_an_optimizers_step_ends_none(tmp_path: Path) -> None:
    def train_and_replay() -> None:
        model, graph = make_model(), PretendedGraph()
        graph.capture_begin()
        model(torch.ones(BATCH, 3))
        graph.capture_end()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, targets in make_loader(4):
            graph.replay()
            train_step(model, optimizer, inputs, targets)

    steps = record_here(tmp_path, train_and_replay).steps
    assert [stages(step) for step in steps] == [["data", *PLAIN], PLAIN, PLAIN, PLAIN]
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH, 1)] * 4


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
