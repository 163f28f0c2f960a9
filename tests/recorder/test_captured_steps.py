"""A step that was captured into a CUDA graph counts where the graph is replayed; on a CPU a pretended graph."""

from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from tests.recorder.recording import record_here
from tests.recorder.test_loop import BATCH, error_of, make_loader, make_model, stages, train

NUM_REPLAYS = 5


class PretendedGraph:
    """Runs nothing: what is captured into it is run at once, as its values do not matter here."""

    def capture_begin(self, *_: object) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...


def train_by_graph(graph: torch.cuda.CUDAGraph) -> None:
    """A few steps as usual, one captured, and the rest by replaying it."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, make_loader(3), optimizer)
    inputs = torch.ones(BATCH, 3)
    graph.capture_begin()
    error_of(model, inputs, inputs.sum(1, keepdim=True)).backward()
    optimizer.step()
    graph.capture_end()
    for _ in range(NUM_REPLAYS):
        graph.replay()


def test_capturing_is_no_step_and_each_replay_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)
    recorded = record_here(tmp_path, lambda: train_by_graph(PretendedGraph()))
    assert recorded.events(CollectorStopped) == []
    assert [stages(step)[-3:] for step in recorded.steps[:3]] == [["forward", "backward", "optimizer"]] * 3
    assert len(recorded.steps) == 3 + NUM_REPLAYS
    seen = {stage for step in recorded.steps[3:] for stage in stages(step)}
    assert seen <= {"data"}, "the stages of a replay cannot be told apart; that the loader was at its end is seen"


def test_a_replay_is_no_part_of_the_last_step_that_ran_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)

    def train_without_a_loader() -> None:
        model, graph = make_model(), PretendedGraph()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = torch.ones(BATCH, 3)
        for _ in range(3):
            model(inputs).sum().backward()
            optimizer.step()
        graph.capture_begin()
        model(inputs).sum().backward()
        optimizer.step()
        graph.capture_end()
        for _ in range(NUM_REPLAYS):
            graph.replay()

    recorded = record_here(tmp_path, train_without_a_loader)
    assert [step.micro_batches for step in recorded.steps] == [1] * (3 + NUM_REPLAYS)


def test_a_graph_without_an_optimizers_step_ends_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)

    def train_and_replay() -> None:
        model, graph = make_model(), PretendedGraph()
        graph.capture_begin()
        model(torch.ones(BATCH, 3))
        graph.capture_end()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, targets in make_loader(4):
            graph.replay()
            error_of(model, inputs, targets).backward()
            optimizer.step()

    recorded = record_here(tmp_path, train_and_replay)
    assert [step.step for step in recorded.steps] == list(range(4))


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
