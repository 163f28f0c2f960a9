"""Which optimizers are told to have lost the state of one before them."""

import copy
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, OptimizerBuilt
from tests.recorder.recording import HARDLY_ANY_IN_FULL, line_of, record_here
from tests.recorder.training import make_batch, make_model, train_step

Parameters = list[torch.nn.Parameter]


class Own(torch.optim.SGD):
    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters, lr=0.01, momentum=0.9)


def build(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)  # built


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int = 3) -> None:
    for _ in range(count):
        train_step(model, optimizer, *make_batch())


def in_each_epoch(make: Callable[[Parameters], torch.optim.Optimizer] = build) -> None:
    """Each is gone before the next one is built."""
    model = make_model()
    for _ in range(3):
        steps(model, make(list(model.parameters())))


def under_its_old_name() -> None:
    """The old one lives on until the new one has its name, and is a cycle with its schedule."""
    model = make_model()
    optimizer = build(list(model.parameters()))
    for _ in range(2):
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        steps(model, optimizer)
        optimizer = build(list(model.parameters()))
    steps(model, optimizer)


def of_a_class_of_its_own() -> None:
    in_each_epoch(lambda parameters: Own(parameters))


def after_other_values() -> None:
    model = make_model()
    first = copy.deepcopy(model.state_dict())
    for _ in range(3):
        model.load_state_dict(first)
        steps(model, build(list(model.parameters())))


def after_a_reset() -> None:
    """The old one lives on until the new one has its name."""
    model = make_model()
    for _ in range(3):
        for layer in (model[0], model[2]):
            layer.reset_parameters()
        optimizer = build(list(model.parameters()))
        steps(model, optimizer)


def after_values_were_put_back() -> None:
    """As a search for the learning rate does it by hand; the old one is gone before or after."""
    model = make_model()
    optimizer = build(list(model.parameters()))
    first = [one.detach().clone() for one in model.parameters()]
    for attempt in range(5):
        if attempt % 2:
            del optimizer
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), first, strict=True):
                parameter.copy_(value)
        optimizer = build(list(model.parameters()))
        steps(model, optimizer)


def after_weights_were_clipped() -> None:
    """As they are after each update."""
    model = make_model()
    optimizer = build(list(model.parameters()))
    for _ in range(2):
        for _ in range(3):
            steps(model, optimizer, count=1)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-1, 1)
        optimizer = build(list(model.parameters()))


def of_two_in_turn() -> None:
    """One steps twice as often as the other."""
    model = make_model()
    first, second = list(model[0].parameters()), list(model[2].parameters())
    steps(model, build(first), count=0)
    for _ in range(3):
        once, twice = build(first), torch.optim.Adam(second)
        for _ in range(3):
            steps(model, twice)
            steps(model, once, count=1)


def with_the_old_state() -> None:
    model = make_model()
    optimizer = build(list(model.parameters()))
    steps(model, optimizer)
    state = optimizer.state_dict()
    optimizer = build(list(model.parameters()))
    optimizer.load_state_dict(state)
    steps(model, optimizer)


def for_other_models() -> None:
    for _ in range(4):
        model = make_model()
        steps(model, build(list(model.parameters())))
        del model
        gc.collect()


def for_more_parameters() -> None:
    model = make_model()
    steps(model, build(list(model[2].parameters())))
    steps(model, build(list(model.parameters())))


def without_state() -> None:
    in_each_epoch(lambda parameters: torch.optim.SGD(parameters, lr=0.01))


def of_another_class() -> None:
    model = make_model()
    steps(model, Own(list(model.parameters())))
    steps(model, build(list(model.parameters())))


def lost(folder: Path, program: Callable[[], None], **options: object) -> list[int]:
    recorded = record_here(folder, program, **options)
    assert recorded.events(CollectorStopped) == []
    latest = {event.number: event for event in recorded.events(OptimizerBuilt)}
    return [event.num_lost for event in latest.values()]


@pytest.mark.parametrize(
    "program", [in_each_epoch, under_its_old_name, of_a_class_of_its_own, after_weights_were_clipped]
)
def test_one_that_is_built_again_has_lost_the_state_of_all_its_parameters(
    program: Callable[[], None], tmp_path: Path
) -> None:
    assert lost(tmp_path, program) == [0, 4, 4]


@pytest.mark.parametrize(
    "program",
    [
        after_other_values,
        after_a_reset,
        after_values_were_put_back,
        with_the_old_state,
        for_other_models,
        for_more_parameters,
        without_state,
        of_another_class,
    ],
)
def test_nothing_is_lost(program: Callable[[], None], tmp_path: Path) -> None:
    assert set(lost(tmp_path, program)) == {0}


def test_each_of_two_has_its_own_updates(tmp_path: Path) -> None:
    assert lost(tmp_path, of_two_in_turn) == [0, 0, 0, 2, 2, 2, 2]


def test_it_is_seen_where_hardly_any_step_is_recorded_in_full(tmp_path: Path) -> None:
    def train() -> None:
        model = make_model()
        for _ in range(4):
            steps(model, build(list(model.parameters())), count=30)

    assert lost(tmp_path, train, overhead=HARDLY_ANY_IN_FULL) == [0, 4, 4, 4]


def test_the_line_is_that_which_calls_the_class_and_not_its_own_code(tmp_path: Path) -> None:
    (*_, event) = record_here(tmp_path / "torch", in_each_epoch).events(OptimizerBuilt)
    here = Path(__file__)
    assert event.site is not None
    assert event.site.split(":")[1:] == [str(line_of(here, "built")), "build"]
    (*_, event) = record_here(tmp_path / "own", of_a_class_of_its_own).events(OptimizerBuilt)
    assert event.site is not None
    assert event.site.endswith("of_a_class_of_its_own.<locals>.<lambda>")


def test_torch_s_class_is_as_it_was_and_optimizers_that_failed_to_be_built_break_nothing(tmp_path: Path) -> None:
    before = dict(vars(torch.optim.Optimizer))

    def train() -> None:
        for arguments in (([],), (list(make_model().parameters()), -1.0)):
            with pytest.raises(ValueError):  # noqa: PT011 - whatever torch says
                torch.optim.Adam(*arguments)
        in_each_epoch()

    assert lost(tmp_path, train)[-2:] == [4, 4]
    assert dict(vars(torch.optim.Optimizer)) == before
