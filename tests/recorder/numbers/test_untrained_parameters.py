"""Which parameters are told to get gradients that no optimizer uses, or to get none."""

import copy
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch import nn

from efprof.artifacts.events import CollectorStopped, ParametersSeen, UntrainedParameters
from tests.recorder.recording import line_of, record_here
from tests.recorder.training import make_model

NUM_STEPS = 24
Loss = Callable[[], torch.Tensor]


def update(loss: Loss, *optimizers: torch.optim.Optimizer, num: int = NUM_STEPS) -> None:
    for _ in range(num):
        for one in optimizers:
            one.zero_grad()
        loss().backward()
        for one in optimizers:
            one.step()


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([one for module in modules for one in module.parameters()], lr=0.01)  # built


def mean_of(*modules: nn.Module) -> Loss:
    return lambda: reduce(lambda states, one: one(states), modules, torch.randn(4, 3)).square().mean()


def layers_in_a_list() -> None:
    layers = [nn.Linear(3, 3) for _ in range(2)]
    model = make_model()
    update(mean_of(*layers, model), sgd(model))


def a_layer_that_came_later() -> None:
    model = make_model()
    optimizer = sgd(model)
    model.append(nn.Linear(1, 2, bias=False))
    update(mean_of(model), optimizer)


def another_model_than_the_optimizers() -> None:
    model = make_model()
    optimizer, model = sgd(model), copy.deepcopy(model)
    update(mean_of(model), optimizer)


def a_helper_in_evaluation_mode() -> None:
    model, helper = make_model(), nn.Linear(1, 2).eval()
    update(mean_of(model, helper), sgd(model))


def a_head_for_another_task() -> None:
    model, head = make_model(), nn.Linear(8, 5)
    update(mean_of(model), sgd(model, head))


def two_players() -> None:
    generator, critic = nn.Linear(3, 3), make_model()
    first, second = sgd(generator), sgd(critic)
    for _ in range(NUM_STEPS):
        first.zero_grad()
        mean_of(generator, critic)().backward()
        first.step()
        second.zero_grad()
        mean_of(critic)().backward()
        second.step()


def one_that_is_updated_by_hand() -> None:
    """Through its data, of which its version tells nothing."""
    model, other = make_model(), nn.Linear(3, 3)
    optimizer = sgd(model)
    for _ in range(NUM_STEPS):
        update(mean_of(other, model), optimizer, num=1)
        for one in other.parameters():
            one.data -= 0.01 * one.grad  # type: ignore[operator]
            one.grad = None


def without_an_optimizer() -> None:
    model = make_model()
    for _ in range(NUM_STEPS):
        mean_of(model)().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for one in model.parameters():
                one -= 0.01 * one.grad  # type: ignore[operator]
                one.grad = None


def master_copies() -> None:
    """Of which the optimizer is, as in half precision."""
    model = make_model()
    copies = [one.detach().clone() for one in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.01)
    for _ in range(NUM_STEPS):
        mean_of(model)().backward()  # type: ignore[no-untyped-call]
        for one, copied in zip(model.parameters(), copies, strict=True):
            copied.grad, one.grad = one.grad, None
        optimizer.step()
        for one, copied in zip(model.parameters(), copies, strict=True):
            one.data.copy_(copied)


def attacked_inputs() -> None:
    model, inputs = make_model(), torch.randn(4, 3, requires_grad=True)
    update(lambda: model(inputs).mean(), sgd(model))


def an_inner_loop() -> None:
    model = make_model()
    outer = sgd(model)
    for _ in range(NUM_STEPS):
        learner = copy.deepcopy(model)
        update(mean_of(learner), sgd(learner), num=2)
        outer.zero_grad()
        update(mean_of(model), outer, num=1)


def an_optimizer_for_each_in_its_hook() -> None:
    model = make_model()
    for one in model.parameters():
        optimizer = torch.optim.SGD([one], lr=0.01)

        def step(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        one.register_post_accumulate_grad_hook(step)
    for _ in range(NUM_STEPS):
        mean_of(model)().backward()  # type: ignore[no-untyped-call]


def an_average_beside_it() -> None:
    model = make_model()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = sgd(model)
    for _ in range(NUM_STEPS):
        update(mean_of(model), optimizer, num=1)
        average.update_parameters(model)  # type: ignore[no-untyped-call]


def frozen_layers() -> None:
    """One the optimizer has, the other not."""
    first, model, last = nn.Linear(3, 3).requires_grad_(False), make_model(), nn.Linear(1, 1).requires_grad_(False)
    update(mean_of(first, model, last), sgd(first, model))


def penalised_gradients() -> None:
    model, critic = make_model(), nn.Linear(3, 1)

    def loss() -> torch.Tensor:
        inputs = torch.randn(4, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(inputs).sum(), inputs)
        return (model(inputs) * slope.sum()).mean()

    update(loss, sgd(model))


def a_low_rank_adapter() -> None:
    model, down, up = make_model().requires_grad_(False), nn.Linear(3, 2), nn.Linear(2, 1)
    update(lambda: (model(torch.ones(4, 3)) + up(down(torch.ones(4, 3)))).mean(), sgd(down, up))


def a_temperature() -> None:
    model, temperature = make_model(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.01)
    update(lambda: mean_of(model)() / temperature, optimizer)


def heads_that_take_turns() -> None:
    model, heads, num = make_model(), [nn.Linear(1, 1), nn.Linear(1, 1)], 0

    def loss() -> torch.Tensor:
        nonlocal num
        num += 1
        return mean_of(model, heads[num % 2])()

    update(loss, sgd(model, *heads))


def layers_that_thaw_later() -> None:
    """The optimizer is given them when its head has been trained for a while."""
    model, head = nn.Linear(3, 3), make_model()
    optimizer = sgd(head)
    update(mean_of(model, head), optimizer, num=18)
    optimizer.add_param_group({"params": list(model.parameters())})
    update(mean_of(model, head), optimizer)


def told(folder: Path, program: Callable[[], None]) -> list[UntrainedParameters]:
    recorded = record_here(folder, program)
    assert recorded.events(CollectorStopped) == []
    found = recorded.events(ParametersSeen)
    return found[-1].untrained if found else []


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (layers_in_a_list, ["Linear.weight [3, 3] (2 times)", "Linear.bias [3] (2 times)"]),
        (a_layer_that_came_later, ["Sequential.3.weight [2, 1]"]),
        (another_model_than_the_optimizers, [f"Sequential.{one}" for one in
                                             ("0.weight [8, 3]", "2.weight [1, 8]", "0.bias [8]", "2.bias [1]")]),
    ],
)  # fmt: skip
def test_parameters_that_no_optimizer_has_are_told_with_the_line_that_builds_it(
    tmp_path: Path, program: Callable[[], None], names: list[str]
) -> None:
    (group,) = told(tmp_path, program)
    assert (group.why, group.names, group.optimizer) == ("not_optimized", names, "SGD")
    assert group.site is not None
    assert f":{line_of(Path(__file__), 'built')}:" in group.site


def test_a_model_in_evaluation_mode_that_is_not_frozen_is_told_with_its_bytes(tmp_path: Path) -> None:
    (group,) = told(tmp_path, a_helper_in_evaluation_mode)
    assert (group.why, group.num_parameters, group.gradient_bytes) == ("helper", 2, 16)


def a_layer_that_was_replaced() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 5))
    optimizer = sgd(model)
    model[1] = nn.Linear(8, 2)
    update(mean_of(model), optimizer)


def test_parameters_of_a_layer_that_was_replaced_are_told_apart(tmp_path: Path) -> None:
    found = {one.why: one for one in told(tmp_path, a_layer_that_was_replaced)}
    assert found.keys() == {"not_optimized", "replaced"}
    assert (found["replaced"].num_parameters, found["replaced"].num_elements) == (2, 45)


def test_parameters_of_an_optimizer_without_a_gradient_are_told(tmp_path: Path) -> None:
    (group,) = told(tmp_path, a_head_for_another_task)
    assert (group.why, group.num_parameters, group.num_elements) == ("no_gradient", 2, 45)


@pytest.mark.parametrize(
    "program",
    [
        two_players, one_that_is_updated_by_hand, without_an_optimizer, master_copies, attacked_inputs, an_inner_loop,
        an_optimizer_for_each_in_its_hook, an_average_beside_it, frozen_layers, penalised_gradients,
        a_low_rank_adapter, a_temperature, heads_that_take_turns, layers_that_thaw_later,
    ],
)  # fmt: skip
def test_what_is_trained_or_meant_to_stay_is_not_told(tmp_path: Path, program: Callable[[], None]) -> None:
    assert told(tmp_path, program) == []
