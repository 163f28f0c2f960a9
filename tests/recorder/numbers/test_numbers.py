"""Losses and gradients as they are recorded, on the CPU."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from efprof.artifacts.events import CollectorStopped, NonFiniteSeen
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, record_here, stages
from tests.recorder.training import make_loader, make_training, make_weight, train

HERE = Path(__file__).name


def descend(gradients: list[float], dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    """One step per number: the loss is the number, and so is its gradient."""

    def train() -> None:
        weight = torch.ones(1, requires_grad=True, dtype=dtype)
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for gradient in gradients:
            optimizer.zero_grad()
            (weight * gradient).sum().backward()
            optimizer.step()

    return train


def two_weights() -> tuple[list[torch.Tensor], list[torch.optim.Optimizer]]:
    """With an optimizer for each, which leaves it as it is."""
    weights = [torch.ones(1, requires_grad=True) for _ in range(2)]
    return weights, [torch.optim.SGD([weight], lr=0.0) for weight in weights]


def numbers_of(recorded: Recorded) -> list[tuple[object, object]]:
    assert recorded.events(CollectorStopped) == []
    return [(step.loss, step.gradient_norm) for step in recorded.steps]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradient_norm_are_exact_in_every_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    assert numbers_of(record_here(tmp_path, descend([2.0, -0.5], dtype))) == [(2.0, 2.0), (-0.5, 0.5)]


def of_large_halves() -> None:
    weight = torch.ones(4, requires_grad=True, dtype=torch.float16)
    (weight * 60000).sum(dtype=torch.float32).backward()
    torch.optim.SGD([weight], lr=0.0).step()


def of_mixed_precision() -> None:
    weights = [torch.ones(1, requires_grad=True, dtype=kind) for kind in (torch.float64, torch.float32, torch.half)]
    (weights[0] * 2 + weights[1] * 3 + weights[2] * 6).sum().backward()
    torch.optim.SGD(weights, lr=0.0).step()


def of_micro_batches() -> None:
    weight, optimizer = make_weight()
    for part in (1.0, 2.0, 4.0):
        (weight * part).sum().backward()
    optimizer.step()


def of_a_complex_loss() -> None:
    weight, optimizer = make_weight()
    (weight * 1j).sum().backward(torch.tensor(1j))
    optimizer.step()


def of_clipped_gradients() -> None:
    weight, optimizer = make_weight()
    (weight * 5).sum().backward()
    assert torch.nn.utils.clip_grad_norm_([weight], 1.0).item() == 5.0
    optimizer.step()


def of_two_optimizers() -> None:
    weights, optimizers = two_weights()
    (weights[0] * 3 + weights[1] * 4).sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def of_sparse_gradients() -> None:
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.ones_(embedding.weight)
    embedding(torch.tensor([1])).sum().backward()
    torch.optim.SGD(embedding.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    ("step", "loss", "norm", "num_gradients"),
    [
        (of_large_halves, 240000.0, pytest.approx(120000, rel=1e-2), 1),
        (of_mixed_precision, 11.0, 7.0, 3),
        (of_micro_batches, 7.0, 7.0, 1),
        (of_a_complex_loss, None, 1.0, 1),
        (of_clipped_gradients, 5.0, 5.0, 1),
        (of_two_optimizers, 7.0, 5.0, 2),
        (of_sparse_gradients, 2.0, None, 1),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_numbers_of_a_step_are_those_of_all_its_losses_and_gradients_before_they_are_clipped(
    step: Callable[[], None], loss: object, norm: object, num_gradients: int, tmp_path: Path
) -> None:
    recorded = record_here(tmp_path, step)
    assert numbers_of(recorded) == [(loss, norm)]
    assert recorded.steps[0].num_gradients == num_gradients


@pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL], ids=["full", "light"])
def test_a_loss_counts_as_often_as_the_gradient_says_that_backward_is_given(overhead: float, tmp_path: Path) -> None:
    def train() -> None:
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        torch.nn.init.ones_(model.weight)
        for number, _ in enumerate(make_loader(60)):
            optimizer.zero_grad()
            model(torch.full((1,), 3.0 + number)).sum().backward(gradient=torch.tensor(-0.5))
            model(torch.tensor([1.0])).sum().backward()
            optimizer.step()

    steps = record_here(tmp_path, train, overhead=overhead).steps
    assert [step.loss for step in steps] == [1.0 - 0.5 * (3.0 + number) for number in range(60)]


BACKWARD: list[tuple[Callable[..., object], float, float]] = [
    (lambda two, three, half, minus: torch.autograd.backward(two), 2.0, 2.0),
    (lambda two, three, half, minus: torch.autograd.backward([two, three]), 5.0, 5.0),
    (lambda two, three, half, minus: torch.autograd.backward(two, half), 1.0, 1.0),
    (lambda two, three, half, minus: torch.autograd.backward([two, three], [half, minus]), -2.0, 2.0),
    (lambda two, three, half, minus: torch.autograd.backward((two, three), grad_tensors=(None, half)), 3.5, 3.5),
    (lambda two, three, half, minus: torch.autograd.backward(tensors=two, grad_tensors=[minus]), -2.0, 2.0),
    (lambda two, three, half, minus: torch.autograd.backward(two, grad_variables=half), 1.0, 1.0),
    (lambda two, three, half, minus: torch.autograd.backward([two], None, None, False, [minus]), -2.0, 2.0),
]
"""Ways to go backward from losses of 2 and 3, one or both, with the loss and the norm that this makes."""


@pytest.mark.filterwarnings("ignore:`grad_variables` is deprecated")
def test_a_gradient_counts_however_backward_is_given_it(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        for backward, _, _ in BACKWARD:
            optimizer.zero_grad()
            backward((weight * 2).sum(), (weight * 3).sum(), torch.tensor(0.5), torch.tensor(-1.0))
            optimizer.step()

    recorded = record_here(tmp_path, train)
    assert numbers_of(recorded) == [(loss, norm) for _, loss, norm in BACKWARD]
    assert [stages(step) for step in recorded.steps] == [["backward", "optimizer"]] * len(BACKWARD)
    assert all((step.backward_site or "").startswith(f"tests/recorder/numbers/{HERE}:") for step in recorded.steps)


def test_nan_and_inf_in_gradients_are_counted(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight(5)
        weight.grad = torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0])
        optimizer.step()

    recorded = record_here(tmp_path, train)
    assert numbers_of(recorded) == [(None, "nan")]
    assert (recorded.steps[0].num_nan, recorded.steps[0].num_inf) == (1, 2)
    assert [event.what for event in recorded.events(NonFiniteSeen)] == ["gradient"]


@pytest.mark.parametrize("clips", [False, True])
def test_numbers_on_a_device_that_nothing_can_be_copied_from_in_passing_are_left_alone(
    clips: bool, tmp_path: Path
) -> None:
    def train() -> None:
        weight = torch.ones(3, device="meta", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for _ in make_loader(4):
            weight.sum().backward()
            if clips:
                torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()

    recorded = record_here(tmp_path, train)
    assert numbers_of(recorded) == [(None, None)] * 4
    assert recorded.steps[0].learning_rate == 0.5


def test_a_learning_rate_that_is_a_tensor_is_read_in_every_step(tmp_path: Path) -> None:
    def train() -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(60):
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                schedule.step()

    rates = [step.learning_rate for step in record_here(tmp_path, train).steps]
    assert rates == [0.5] + [0.25] * 59


def seen_in(
    tmp_path: Path, loss_of: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[NonFiniteSeen, list[tuple[str, str]]]:
    """What is told of the first step of a weight of one and zero, and the nodes named for it."""

    def train() -> None:
        weight = torch.tensor([1.0, 0.0], requires_grad=True)
        loss = loss_of(weight)  # its graph is there when the gradient turns out to be bad
        loss.backward()
        torch.optim.SGD([weight], lr=0.0).step()

    recorded = record_here(tmp_path, train)
    assert recorded.events(CollectorStopped) == []
    (seen,) = recorded.events(NonFiniteSeen)
    return seen, [(suspect.node, suspect.operand) for suspect in seen.suspects]


def test_a_bad_loss_is_traced_to_the_operation_that_made_it(tmp_path: Path) -> None:
    seen, _ = seen_in(tmp_path, lambda weight: weight.log().mean())
    assert (seen.step, seen.what, seen.value) == (0, "loss", "-inf")
    assert [(suspect.node, suspect.num_bad) for suspect in seen.suspects] == [("LogBackward0", 1)]


BAD_DATA = torch.tensor([[1.0, math.nan]])


def test_bad_data_are_told_from_the_layers_that_pass_them_on(tmp_path: Path) -> None:
    found = seen_in(tmp_path, lambda w: torch.relu(w * BAD_DATA).mean())[1]
    assert found == [("MulBackward0", "data that is NaN or Inf already")]


def test_of_a_gradient_that_turns_bad_nothing_is_guessed(tmp_path: Path) -> None:
    seen, suspects = seen_in(tmp_path, lambda w: (w * 0).sqrt().sum())
    assert (seen.what, suspects) == ("gradient", [])


def test_a_parameter_that_an_update_turned_bad_is_told_and_is_no_data(tmp_path: Path) -> None:
    def train_half() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 1)).half()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            loss = model(torch.tensor([[1.0, 0.0]]).half()).square().sum()  # the second weight's gradient is zero
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    (seen,) = record_here(tmp_path, train_half).events(NonFiniteSeen)
    assert (seen.step, seen.what, seen.suspects) == (1, "loss", [])
    parameter = seen.parameter
    assert parameter is not None
    assert (parameter.name, parameter.dtype, parameter.num_bad) == ("Linear.weight", "float16", 1)
    assert (parameter.optimizer, parameter.eps, parameter.has_finite_state) == ("Adam", 1e-8, True)


def test_what_was_computed_from_parameters_is_not_called_data(tmp_path: Path) -> None:
    def overflowing(weight: torch.Tensor) -> torch.Tensor:
        too_much = weight * 1e30 * 1e30
        return torch.nn.functional.binary_cross_entropy_with_logits(too_much, torch.ones(2))

    assert seen_in(tmp_path, overflowing)[1] == []


def test_the_square_of_an_exploded_value_is_no_suspect(tmp_path: Path) -> None:
    assert seen_in(tmp_path, lambda weight: (weight * 1e30).pow(2).mean())[1] == []


def test_only_the_first_bad_value_is_searched_for(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, descend([1.0, math.nan, math.nan]))
    assert [event.step for event in recorded.events(NonFiniteSeen)] == [1]
    assert numbers_of(recorded) == [(1.0, 1.0), ("nan", "nan"), ("nan", "nan")]


@pytest.mark.parametrize("clips", [False, True])
def test_a_training_that_goes_on_with_nan_is_not_slowed_down_by_counting(clips: bool, tmp_path: Path) -> None:
    def train_on() -> None:
        weight = torch.nn.Parameter(torch.ones(5))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(120):
            (weight.sum() * (math.nan if step >= 3 else 1.0)).backward()
            if clips:
                torch.nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()

    steps = record_here(tmp_path, train_on).steps
    assert [step.gradient_norm == "nan" for step in steps[60:]] == [True] * 60
    counted = [step.step for step in steps if step.num_nan]
    assert counted == [3, 4, 5, 6, 7, 8, 9, 10]


def test_a_mode_of_the_program_neither_sees_our_readings_nor_hides_its_numbers(tmp_path: Path) -> None:
    class NoReads(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "_local_scalar_dense" in str(function):
                raise ValueError("a value is read within the step")
            return function(*args, **(kwargs or {}))

    def train() -> None:
        with NoReads():
            descend([2.0, -0.5])()

    assert numbers_of(record_here(tmp_path, train)) == [(2.0, 2.0), (-0.5, 0.5)]


@pytest.mark.parametrize(("num_optimizers", "norm"), [(1, math.sqrt(50.0)), (2, 50.0)])
def test_the_norm_of_one_module_is_not_taken_for_that_of_two_that_are_clipped_by_themselves(
    num_optimizers: int, norm: float, tmp_path: Path
) -> None:
    """It is that from before the clipping where each has an optimizer of its own."""

    def train() -> None:
        weights, optimizers = two_weights()
        if num_optimizers == 1:
            optimizers = [torch.optim.SGD(weights, lr=0.0)]
        for _ in make_loader(4):
            torch.autograd.backward([(weights[0] * 30.0).sum(), (weights[1] * 40.0).sum()])
            for weight in weights:
                torch.nn.utils.clip_grad_norm_([weight], 5.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    recorded = record_here(tmp_path, train)
    assert [step.gradient_norm for step in recorded.steps] == [pytest.approx(norm)] * 4


def test_gradients_that_are_clipped_after_each_backward_pass_have_the_last_norm(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        for _ in make_loader(4):
            for factor in (3.0, 6.0):
                (weight * factor).sum().backward()
                torch.nn.utils.clip_grad_norm_([weight], math.inf)  # which only asks for it
                torch.nn.utils.clip_grad_norm_([weight], 2.0)
            optimizer.step()
            optimizer.zero_grad()

    assert [step.gradient_norm for step in record_here(tmp_path, train).steps] == [pytest.approx(8.0)] * 4


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize(("num_steps", "window_ends_at"), [(5, 0), (5, 9), (100, 0)])
def test_parameters_can_be_swapped_between_steps(num_steps: int, window_ends_at: int, tmp_path: Path) -> None:
    model, optimizer = make_training()

    def train_twice() -> None:
        for _ in range(2):
            train(model, make_loader(num_steps), optimizer)
            optimizer.zero_grad()
            model.double().float()

    steps = record_here(tmp_path, train_twice, memory_steps=((0, window_ends_at),)).steps
    assert len(steps) == 2 * num_steps
    assert all(step.gradient_norm for step in (steps[0], steps[num_steps]))


@pytest.fixture
def swapping() -> Iterator[None]:
    """Conversions keep the parameters the objects that they are, as they may become usual in torch."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)
