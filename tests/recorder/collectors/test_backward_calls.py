"""What is seen of calls of backward: who keeps a graph, whether it is run again by whatever way, and when it goes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from efprof.artifacts.events import BackwardCalls, CollectorStopped
from efprof.recorder.collectors import backward_calls
from tests.recorder.holders import SAVED_IS_TOLD
from tests.recorder.recording import Recorded, line_of, record_here

NUM_STEPS, WIDTH, ROWS = 12, 16, 32
pytestmark = pytest.mark.filterwarnings("ignore:Using backward")  # with create_graph=True, as torch says
Pass = Callable[["Program"], object]
HERE = Path(__file__)


class Program:
    """A trunk and two heads, trained by whatever `work` does with a batch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softplus())
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(2))
        self.optimizer = torch.optim.SGD([*self.trunk.parameters(), *self.heads.parameters()], lr=0.01)
        self.state = torch.zeros(ROWS, WIDTH)
        self.kept: list[torch.Tensor] = []

    def train(self, work: Pass) -> None:
        for _ in range(NUM_STEPS):
            self.optimizer.zero_grad()
            self.result = work(self)
            self.optimizer.step()

    def features(self) -> torch.Tensor:
        return self.trunk(torch.randn(ROWS, WIDTH))  # type: ignore[no-any-return]

    def losses(self) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.features()
        return self.heads[0](features).mean(), self.heads[1](features).mean()


def needless(program: Program) -> torch.Tensor:
    loss = program.losses()[0]
    loss.backward(retain_graph=True)  # needless
    return loss


def released_at_its_end(program: Program) -> None:
    program.losses()[0].backward(retain_graph=True)


def plain(program: Program) -> None:
    program.losses()[0].backward()


def both_losses(program: Program) -> None:
    first, second = program.losses()
    first.backward(retain_graph=True)
    second.backward()


def gradient_of_the_trunk(program: Program) -> None:
    features = program.features()
    program.heads[0](features).mean().backward(retain_graph=True)
    torch.autograd.grad(features.sum(), [program.trunk[0].weight])


def carried_over(program: Program) -> None:
    program.state = program.trunk(program.state)
    program.state.mean().backward(retain_graph=True)
    program.state = program.state * 1
    for weight in program.trunk.parameters():  # an update in place would make the old graph unusable
        weight.grad = None


def kept_in_a_list(program: Program) -> None:
    loss = program.losses()[0]
    loss.backward(retain_graph=True)
    program.kept.append(loss)


def second_derivatives(program: Program) -> None:
    program.losses()[0].backward(create_graph=True)
    weight = program.trunk[0].weight
    weight.grad.square().mean().backward(inputs=[weight])
    program.optimizer.zero_grad()


def left_on_its_leaf(program: Program) -> None:
    inputs = torch.randn(ROWS, WIDTH, requires_grad=True)
    program.heads[0](program.trunk(inputs)).sum().backward(create_graph=True)


def taken_from_its_leaf(program: Program) -> None:
    inputs = torch.randn(ROWS, WIDTH, requires_grad=True)
    program.heads[0](program.trunk(inputs)).sum().backward(create_graph=True)
    inputs.grad = None


def recorded(folder: Path, work: Pass) -> Recorded:
    found = record_here(folder, partial(Program().train, work))
    assert found.events(CollectorStopped) == []
    return found


def calls_in(folder: Path, work: Pass) -> list[BackwardCalls]:
    """The last event of each line."""
    return list({event.site: event for event in recorded(folder, work).events(BackwardCalls)}.values())


@SAVED_IS_TOLD
def test_a_graph_that_nobody_needs_is_let_go_without_a_second_run(tmp_path: Path) -> None:
    (event,), (at_its_end,) = calls_in(tmp_path / "a", needless), calls_in(tmp_path / "b", released_at_its_end)
    for one in (event, at_its_end):
        assert (one.num_calls, one.num_retained, one.num_run_again) == (NUM_STEPS, NUM_STEPS, 0)
        assert one.num_watched == NUM_STEPS
        assert one.num_released >= NUM_STEPS - 1
    assert event.num_released_later >= NUM_STEPS - 2, "the next step is reached before it goes"
    assert at_its_end.num_released_later == 0
    assert event.site == f"tests/recorder/collectors/{HERE.name}:{line_of(HERE, 'needless')}:needless"
    batch, before, after = (4 * ROWS * WIDTH for _ in range(3))
    assert event.kept_bytes == batch + before + after, "the batch, and what is before and behind the softplus"


@pytest.mark.parametrize("work", [both_losses, gradient_of_the_trunk, carried_over, second_derivatives])
def test_whatever_runs_a_node_again_is_seen(tmp_path: Path, work: Pass) -> None:
    event = calls_in(tmp_path, work)[0]
    assert event.num_retained == event.num_calls
    assert event.num_run_again >= NUM_STEPS - 2, "of the last losses nobody runs the graph again"


def test_a_pass_that_begins_at_an_edge_or_comes_from_a_generator_is_not_watched(tmp_path: Path) -> None:
    def from_edge(program: Program) -> None:
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(program.losses()[0]), retain_graph=True)

    def from_generator(program: Program) -> None:
        torch.autograd.backward((loss for loss in program.losses()), retain_graph=True)  # type: ignore[arg-type]

    for place, work in (("edge", from_edge), ("generator", from_generator)):
        (event,) = calls_in(tmp_path / place, work)
        assert (event.num_retained, event.num_watched) == (NUM_STEPS, 0)


def test_without_the_argument_nothing_is_watched_and_what_something_holds_does_not_go(tmp_path: Path) -> None:
    (event,), (held,) = calls_in(tmp_path / "a", plain), calls_in(tmp_path / "b", kept_in_a_list)
    assert (event.num_calls, event.num_retained, event.num_watched) == (NUM_STEPS, 0, 0)
    assert (held.num_watched, held.num_released) == (NUM_STEPS, 0)


def test_leaves_that_keep_a_gradient_with_a_graph_are_counted_and_named_until_it_is_taken_away(tmp_path: Path) -> None:
    (left,), (taken,) = calls_in(tmp_path / "a", left_on_its_leaf), calls_in(tmp_path / "b", taken_from_its_leaf)
    assert (left.num_created, left.num_cycles, left.leaf) == (NUM_STEPS, NUM_STEPS, "inputs")
    assert (taken.num_created, taken.num_cycles) == (NUM_STEPS, 0)
    assert taken.num_released >= NUM_STEPS - 1, "the last step's parameters have their gradients still"


@pytest.mark.parametrize(("limit", "least"), [("MAX_NODES", 4), ("MAX_SECONDS", 0.0)])
def test_neither_a_graph_that_is_too_large_nor_one_beyond_the_allowance_is_watched(
    limit: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backward_calls, limit, least)
    (event,) = calls_in(tmp_path, needless)
    assert (event.num_retained, event.num_watched) == (NUM_STEPS, 0)


def test_what_is_known_is_noted_before_the_end(tmp_path: Path) -> None:
    events = recorded(tmp_path, needless).events(BackwardCalls)
    assert [event.num_calls for event in events] == [backward_calls.FIRST_NOTE, NUM_STEPS]


def test_training_is_the_same_with_and_without_the_watch(tmp_path: Path) -> None:
    def weights(train: Callable[[Any], object]) -> list[torch.Tensor]:
        program = Program()
        train(partial(program.train, both_losses))
        return list(program.trunk.parameters())

    alone, watched = weights(lambda train: train()), weights(partial(record_here, tmp_path))
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
