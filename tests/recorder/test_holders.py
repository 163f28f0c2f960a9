"""Counting holders within a time limit, and `--holders`: counting them though nothing grows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import Census as CensusEvent
from efprof.artifacts.holders import read_censuses
from efprof.recorder import census as census_module
from efprof.recorder.census import Census
from efprof.recorder.collectors.holders import _sorted as grown_and_steady
from efprof.recorder.held import Clock, Held
from efprof.recorder.saved_tensors import Nodes
from efprof.recorder.sites import Sites
from efprof.recorder.writing import LineWriter, RankFolder
from tests.recorder.conftest import Begin
from tests.recorder.recording import Recorded, record_here, record_script


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough to count pytest's own heap on a busy machine."""
    monkeypatch.setattr(census_module, "MAX_SECONDS", 20.0)


@pytest.fixture
def _hurry(_patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little time for 400,000 objects."""
    monkeypatch.setattr(census_module, "MAX_SECONDS", 0.2)


class Sample:
    """An element of a data set in memory."""

    def __init__(self) -> None:
        self.texts = ["a", "b"]
        self.place = object()


def big_loss(weight: torch.Tensor) -> torch.Tensor:
    """A loss whose graph keeps 40 kB."""
    return (weight * torch.ones(10_000)).square().mean()


def keep_many(tmp_path: Path) -> Census:
    """With a data set of more objects than a census has time for, before the list that is asked about."""
    dataset = [Sample() for _ in range(400_000)]
    history = [torch.ones(3)]
    census = Census(Sites(Path(__file__).parents[2], LineWriter(RankFolder(tmp_path), "sources.jsonl")))
    census.count()
    del dataset
    history.clear()
    return census


@pytest.mark.usefixtures("_hurry")
def test_a_census_of_a_heap_too_large_says_so_and_counts_what_stands_beside_it(tmp_path: Path) -> None:
    census = keep_many(tmp_path)
    assert census.is_partial
    assert census.held["local", "keep_many.history"].tensors == 1
    assert ("local", "keep_many.history") not in census.cut


def keep_tensors(tmp_path: Path) -> Census:
    """With more tensors than a census has time for."""
    dataset = [torch.ones(1)] * 400_000
    census = Census(Sites(Path(__file__).parents[2], LineWriter(RankFolder(tmp_path), "sources.jsonl")))
    census.count()
    dataset.clear()
    return census


@pytest.mark.usefixtures("_hurry")
def test_a_variable_that_is_not_counted_to_its_end_is_marked(tmp_path: Path) -> None:
    census = keep_tensors(tmp_path)
    assert ("local", "keep_tensors.dataset") in census.cut
    assert 0 < census.held["local", "keep_tensors.dataset"].tensors < 400_000


def keep_losses(tmp_path: Path) -> Census:
    """Each of which has a graph of its own."""
    weight = torch.ones(1, requires_grad=True)
    history = [big_loss(weight) for _ in range(6)]
    census = Census(Sites(Path(__file__).parents[2], LineWriter(RankFolder(tmp_path), "sources.jsonl")))
    census.count()
    history.clear()
    return census


def test_more_tensors_are_growth_though_there_was_no_time_for_their_graphs(tmp_path: Path) -> None:
    before, after = keep_losses(tmp_path), keep_losses(tmp_path)
    key = ("local", "keep_losses.history")
    before.held[key].tensors, before.held[key].graph_nodes = 3, 7
    after.cut_graphs.add(key)
    after.is_partial = True
    (grown,) = [holder for holder in grown_and_steady(before, after)[0] if holder.path == key[1]]
    assert (grown.tensors_before, grown.tensors_after) == (3, 6)
    assert (grown.graph_nodes_before, grown.graph_nodes_after) == (7, 7), "the least there is"


def test_the_graphs_that_there_is_no_time_for_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_graphs(held: Held, known: Nodes, clock: Clock) -> None:
        """As if the time were up by then."""
        clock.limit = 0.0
        count_graphs(held, known, clock)

    count_graphs = Held.add_graphs
    monkeypatch.setattr(Held, "add_graphs", add_graphs)
    census = keep_losses(tmp_path)
    assert census.is_partial
    assert ("local", "keep_losses.history") in census.cut_graphs - census.cut
    assert census.held["local", "keep_losses.history"].tensors == 6


def train_with(kept: list[torch.Tensor], num_steps: int) -> Callable[[], object]:
    """A training that keeps these all along, and nothing more."""

    def train() -> None:
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.0)
        held = kept
        for _ in range(num_steps):
            optimizer.zero_grad()
            big_loss(weight).backward()
            optimizer.step()
        del held

    return train


def test_all_holders_are_counted_when_asked_for_though_nothing_grows(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, train_with([torch.ones(1000), torch.ones(1000)], 600), holders=True)
    censuses = read_censuses(recorded.rank)
    assert {census.step_after - census.step_before for census in censuses} == {4}
    assert any(census.step_before == 8 for census in censuses)
    assert any(census.step_before >= 80 for census in censuses)
    for census in censuses:
        (kept,) = [holder for holder in census.holders if holder.name == "held"]
        assert (kept.tensors_before, kept.tensors_after, kept.tensor_bytes_after) == (2, 2, 8000)


def test_what_grows_comes_before_what_does_not(tmp_path: Path) -> None:
    losses: list[torch.Tensor] = []

    def train() -> None:
        weight, steady = torch.ones(1, requires_grad=True), torch.ones(1_000_000)
        optimizer = torch.optim.SGD([weight], lr=0.0)
        history = losses
        for _ in range(14):
            optimizer.zero_grad()
            loss = big_loss(weight)
            loss.backward(retain_graph=True)
            optimizer.step()
            history.append(loss)
        del steady

    names = [holder.name for holder in read_censuses(record_here(tmp_path, train, holders=True).rank)[0].holders]
    assert names[0] in ("history", "losses")
    assert "steady" in names


@pytest.mark.usefixtures("_hurry")
def test_a_holder_that_a_census_had_no_time_for_is_not_said_to_grow(tmp_path: Path) -> None:
    def train() -> None:
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.0)
        dataset = [torch.ones(1)] * 400_000
        for _ in range(14):
            optimizer.zero_grad()
            big_loss(weight).backward()
            optimizer.step()
        dataset.clear()

    (census,) = read_censuses(record_here(tmp_path, train, holders=True).rank)
    (holder,) = [holder for holder in census.holders if holder.name == "dataset"]
    assert census.is_partial
    assert holder.tensors_before == holder.tensors_after > 0


def test_short_steps_are_counted_when_they_end_and_not_when_they_are_written(tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []

    def train() -> None:
        weight, history = torch.ones(1, requires_grad=True), kept
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for _ in range(1200):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
            history.append(torch.ones(100))

    late = read_censuses(record_here(tmp_path, train, holders=True).rank)[-1]
    (holder,) = [holder for holder in late.holders if holder.name == "history"]
    assert late.step_before >= 80
    assert holder.tensors_before == pytest.approx(late.step_before, abs=1)
    assert holder.tensors_after - holder.tensors_before == pytest.approx(late.step_after - late.step_before, abs=1)


GROWING = """
import torch

history, weight = [], torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
for _ in range(20):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    history.append(torch.ones(10_000))
"""


def record(begin: Begin, text: str, **fields: object) -> Recorded:
    """In a process of its own: what other tests free is taken again here, so that memory does not grow."""
    child = begin(text, **fields)
    assert child.wait() == 0, child.errors
    return Recorded(folder=child.folder)


def test_growing_memory_has_its_holders_counted(begin: Begin) -> None:
    assert record(begin, GROWING).events(CensusEvent)


def test_growing_memory_has_its_holders_not_counted_where_it_is_forbidden(tmp_path: Path) -> None:
    recorded = record_script(tmp_path / "home", GROWING, options=("--windows", "none", "--no-holders"))
    assert len(recorded.steps) == 20
    assert recorded.events(CensusEvent) == []


IN_JUMPS = """
import time

import torch

outputs, weight = [], torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
for step in range({num_steps}):
    optimizer.zero_grad()
    weight.sum().backward()
    time.sleep(0.004)  # shorter steps have their memory read too rarely
    optimizer.step()
    if step % 6 == 5:
        outputs.append(torch.ones(100_000))
        {bound}
"""


def test_memory_that_grows_every_so_many_steps_has_its_holders_counted_around_a_rise(begin: Begin) -> None:
    recorded = record(begin, IN_JUMPS.format(num_steps=800, bound=""))
    censuses = read_censuses(recorded.rank)
    assert censuses
    for census in censuses:
        (holder,) = [one for one in census.holders if one.name == "outputs"]
        assert 1 <= holder.tensors_after - holder.tensors_before <= 6
        assert census.step_after - census.step_before <= 32


@pytest.mark.parametrize("bound", ["del outputs[:-1]", "if len(outputs) == 3: outputs.clear()"])
def test_memory_that_falls_again_has_its_holders_not_counted(bound: str, begin: Begin) -> None:
    recorded = record(begin, IN_JUMPS.format(num_steps=800, bound=bound))
    assert len(recorded.steps) == 800
    assert recorded.events(CensusEvent) == []
