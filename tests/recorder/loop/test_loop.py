"""Steps and stages of training loops as people write them."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from efprof.artifacts.events import LoaderBuilt, StepsWithoutOptimizer
from efprof.artifacts.steps import STEPS_FILE
from efprof.facts.overview.run_warnings import WITHOUT_OPTIMIZER, warnings_of
from efprof.facts.run.run import open_run
from efprof.model import BOUNDARIES
from efprof.recorder.hooks.loop_hooks import failed_stage
from tests.recorder import training
from tests.recorder.recording import (
    PLAIN,
    UPDATE,
    Recorded,
    boundaries,
    line_of,
    record_here,
    running_session,
    stages,
)
from tests.recorder.training import (
    BATCH,
    Batch,
    error_of,
    evaluate,
    make_batch,
    make_loader,
    make_model,
    make_training,
    train,
    train_plainly,
    train_step,
    update_by_hand,
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_here(tmp_path_factory.mktemp("plain"), train_plainly)


def test_every_step_has_its_four_stages_in_order(plain: Recorded) -> None:
    assert [stages(step) for step in plain.steps[1:]] == [PLAIN] * 5


def test_making_the_loader_start_is_data_too(plain: Recorded) -> None:
    assert stages(plain.steps[0]) == ["data", "data", "forward", "backward", "optimizer"]


def test_memory_is_read_at_every_boundary_in_order(plain: Recorded) -> None:
    assert [boundaries(step) for step in plain.steps] == [list(BOUNDARIES)] * 6


def test_stages_follow_each_other_within_the_step(plain: Recorded) -> None:
    for step in plain.steps:
        instants = [instant for span in step.spans for instant in (span.start_us, span.end_us)]
        assert instants == sorted(instants)
        assert instants[-1] <= step.total_us


def test_steps_are_numbered_and_follow_each_other(plain: Recorded) -> None:
    steps = plain.steps
    assert [step.step for step in steps] == list(range(6))
    ends = [step.started_ns + step.total_us * 1000 for step in steps]
    assert all(end <= after.started_ns + 1e6 for end, after in zip(ends, steps[1:], strict=False))


def test_the_recorders_own_time_lies_within_the_step(plain: Recorded) -> None:
    assert all(0 < step.recorder_us < step.total_us for step in plain.steps)


def test_samples_micro_batches_and_loader_are_counted(plain: Recorded) -> None:
    assert {(step.samples, step.micro_batches, step.loader) for step in plain.steps} == {(BATCH, 1, 0)}


def test_the_line_that_called_backward_is_kept(plain: Recorded) -> None:
    site = f"tests/recorder/training.py:{line_of(Path(training.__file__), 'backward')}:train_step"
    assert {step.backward_site for step in plain.steps} == {site}


def test_accumulated_micro_batches_make_one_step(tmp_path: Path) -> None:
    def accumulate() -> None:
        model, optimizer = make_training()
        for number, (inputs, targets) in enumerate(make_loader(12), start=1):
            (error_of(model, inputs, targets) / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    steps = record_here(tmp_path, accumulate).steps
    assert [(step.micro_batches, step.samples) for step in steps] == [(4, 4 * BATCH)] * 3
    assert stages(steps[1]) == ["data", "forward", "backward"] * 4 + ["optimizer"]
    assert boundaries(steps[1]) == [*BOUNDARIES[:4]] * 4 + ["post_optimizer_step"]


@pytest.mark.parametrize("keeps_gradients", [False, True], ids=["without gradients", "in evaluation mode"])
def test_an_evaluation_between_steps_belongs_to_no_step(keeps_gradients: bool, tmp_path: Path) -> None:
    def train_and_evaluate() -> None:
        model, optimizer = make_training()
        loader, validation = make_loader(4), make_loader(5)
        for _ in range(3):
            train(model.train(), loader, optimizer)
            with torch.set_grad_enabled(keeps_gradients):
                for batch in validation:
                    error_of(model.train(not keeps_gradients), *batch)

    steps = record_here(tmp_path, train_and_evaluate).steps
    assert [(step.loader, step.samples) for step in steps] == [(0, BATCH)] * 12
    assert all(stages(step)[-3:] == UPDATE for step in steps)
    assert all(stages(step).count("data") <= 2 for step in steps)


def test_an_evaluation_between_accumulated_batches_adds_no_samples(tmp_path: Path) -> None:
    def accumulate_over_epochs() -> None:
        model, optimizer = make_training()
        training, validation = make_loader(3), make_loader(5)
        for epoch in range(6):
            model.train()
            for number, (inputs, targets) in enumerate(training, start=3 * epoch + 1):
                error_of(model, inputs, targets).backward()
                if number % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            model.eval()
            evaluate(model, validation)

    steps = record_here(tmp_path, accumulate_over_epochs).steps
    assert [(step.micro_batches, step.samples) for step in steps] == [(2, 2 * BATCH)] * 9


@pytest.mark.parametrize("num_accumulated", [1, 3])
def test_a_batch_that_a_teacher_sees_first_counts(num_accumulated: int, tmp_path: Path) -> None:
    def distil() -> None:
        (model, optimizer), teacher = make_training(), make_model().eval()
        for number, (inputs, _) in enumerate(make_loader(6), start=1):
            with torch.no_grad():
                targets = teacher(inputs)
            error_of(model, inputs, targets).backward()
            if number % num_accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()

    steps = record_here(tmp_path, distil).steps
    assert [step.samples for step in steps] == [num_accumulated * BATCH] * (6 // num_accumulated)


def test_a_loader_built_before_the_recording_is_known_by_where_it_is_first_used(tmp_path: Path) -> None:
    (model, optimizer), loader = make_training(), make_loader(4, num_workers=0)

    def train_twice() -> None:
        for _ in range(2):
            for batch in loader:  # first used
                train_step(model, optimizer, *batch)

    recorded = record_here(tmp_path, train_twice)
    (built,) = recorded.events(LoaderBuilt)
    line = line_of(Path(__file__), "first used")
    assert built.site == f"tests/recorder/loop/test_loop.py:{line}:{train_twice.__qualname__}"
    assert (built.batch_size, built.num_batches) == (BATCH, 4)
    assert [step.loader for step in recorded.steps] == [0] * 8


@pytest.mark.parametrize(
    "make", [lambda: (make_batch() for _ in range(5)), lambda: list(make_loader(5))], ids=["made", "listed beforehand"]
)
def test_a_loop_without_a_loader_steps_from_forward_to_forward(
    make: Callable[[], Iterable[Batch]], tmp_path: Path
) -> None:
    def train_without_a_loader() -> None:
        model, optimizer = make_training()
        train(model, make(), optimizer)

    steps = record_here(tmp_path, train_without_a_loader).steps
    assert [stages(step) for step in steps] == [UPDATE] * 5
    assert [boundaries(step) for step in steps] == [list(BOUNDARIES)] * 5
    assert {step.micro_batches for step in steps} == {1}


def test_a_loop_without_modules_steps_from_backward_to_backward(tmp_path: Path) -> None:
    def descend() -> None:
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for _ in range(4):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
            with torch.no_grad():
                weight.fill_(2.0)

    steps = record_here(tmp_path, descend).steps
    assert [stages(step) for step in steps] == [["backward", "optimizer"]] * 4
    assert [step.loss for step in steps] == [3.0, 12.0, 12.0, 12.0]


class Adversaries:
    """A generator, and a critic of what it makes; each of their updates needs both."""

    def __init__(self) -> None:
        self.generator, self.critic = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
        self.optimizers = {
            name: torch.optim.SGD(model.parameters(), lr=0.01)
            for name, model in (("critic", self.critic), ("generator", self.generator))
        }

    def update(self, *names: str) -> None:
        for name in names:
            self.critic(self.generator(torch.randn(BATCH, 2))).mean().backward()
            self.optimizers[name].step()


CRITIC, GENERATOR, BOTH = ("critic",), ("generator",), ("critic", "generator")
OF_ADVERSARIES = ["forward", *UPDATE]


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        (2 * CRITIC, [["data", *OF_ADVERSARIES], OF_ADVERSARIES]),
        (3 * CRITIC + GENERATOR, [["data", *OF_ADVERSARIES], *[OF_ADVERSARIES] * 3]),
        (2 * BOTH, [["data", *2 * OF_ADVERSARIES], 2 * OF_ADVERSARIES]),
    ],
    ids=["each update of one", "each update, where one steps more often", "each round, where they take turns"],
)
def test_adversaries_that_step_several_times_on_a_batch_make_several_steps(
    updates: tuple[str, ...], expected: list[list[str]], tmp_path: Path
) -> None:
    def train_adversaries() -> None:
        adversaries = Adversaries()
        for _ in make_loader(6):
            adversaries.update(*updates)

    steps = record_here(tmp_path, train_adversaries).steps
    assert [stages(step) for step in steps[-4 * len(expected) :]] == expected * 4, "two batches show it"
    assert [step.samples for step in steps] == [BATCH, *[0] * (len(expected) - 1)] * 6


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_epochs_follow_each_other_without_a_step_between(workers: dict[str, object], tmp_path: Path) -> None:
    def train_epochs() -> None:
        (model, optimizer), loader = make_training(), make_loader(3, **workers)
        for _ in range(3):
            train(model, loader, optimizer)

    recorded = record_here(tmp_path, train_epochs)
    assert [step.samples for step in recorded.steps] == [BATCH] * 9
    assert [stages(step).count("data") for step in recorded.steps] == [2, 1, 1] * 3
    assert not (tmp_path / "rank1").exists(), "a worker must record nothing"


def test_a_training_function_that_is_called_twice_goes_on_counting(tmp_path: Path) -> None:
    def train_twice() -> None:
        train_plainly(3)
        train_plainly(3)

    steps = record_here(tmp_path, train_twice).steps
    assert [(step.step, step.loader) for step in steps] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]


class Wrapped(torch.optim.SGD):
    """As Lookahead and sharpness-aware optimizers do: its step calls another optimizer's."""

    def __init__(self, inner: torch.optim.Optimizer, parameters: Iterator[torch.nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.01)
        self.inner = inner

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step()
        super().step(closure)


def test_an_optimizer_that_calls_another_is_one_stage(tmp_path: Path) -> None:
    def train_wrapped() -> None:
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        train(model, make_loader(4), Wrapped(inner, model.parameters()))

    steps = record_here(tmp_path, train_wrapped).steps
    assert [stages(step)[-4:] for step in steps] == [PLAIN] * 4


def test_a_closure_s_passes_are_no_part_of_the_optimizer(tmp_path: Path) -> None:
    def fit() -> None:
        model, inputs = make_model(), torch.randn(BATCH, 3)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = error_of(model, inputs, inputs.sum(1, keepdim=True))
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)  # type: ignore[arg-type]

    steps = record_here(tmp_path, fit).steps
    assert len(steps) == 4
    for step in steps:
        assert stages(step) == UPDATE * step.micro_batches
        assert step.gradient_norm is not None


@pytest.mark.parametrize("has_loader", [True, False])
def test_updates_by_hand_divide_steps_at_the_loader_or_else_at_the_forward_pass(
    has_loader: bool, tmp_path: Path
) -> None:
    def train_by_hand() -> None:
        model = make_model()
        for batch in make_loader(5) if has_loader else [make_batch() for _ in range(5)]:
            error_of(model, *batch).backward()
            update_by_hand(model)

    recorded = record_here(tmp_path, train_by_hand)
    whole = ["data", "forward", "backward"][not has_loader :]
    assert [stages(step)[-len(whole) :] for step in recorded.steps] == [whole] * 5
    assert [(step.samples, step.micro_batches) for step in recorded.steps] == [(BATCH * has_loader, 1)] * 5
    assert [(boundaries(step)[-1], step.is_skipped) for step in recorded.steps] == [("post_optimizer_step", False)] * 5
    assert len(recorded.events(StepsWithoutOptimizer)) == 1
    assert WITHOUT_OPTIMIZER in warnings_of(open_run(tmp_path))


def test_updates_by_hand_without_loader_or_module_divide_steps_at_backward(tmp_path: Path) -> None:
    def descend() -> None:
        weight = torch.ones(3, requires_grad=True)
        for _ in range(4):
            (gradient,) = torch.autograd.grad(weight.square().sum(), [weight])
            with torch.no_grad():
                weight -= 0.1 * gradient

    assert [stages(step) for step in record_here(tmp_path, descend).steps] == [["backward"]] * 4


@pytest.mark.parametrize("given", [lambda model: dict(model.named_parameters()).values(), torch.nn.Module.parameters])
def test_gradients_may_be_asked_for_of_any_iterable(given: Callable[[torch.nn.Module], Any], tmp_path: Path) -> None:
    def descend() -> None:
        model = make_model()
        for _ in range(4):
            gradients = torch.autograd.grad(error_of(model, *make_batch()), given(model))
            with torch.no_grad():
                for one, gradient in zip(model.parameters(), gradients, strict=True):
                    one -= 0.1 * gradient

    assert len(record_here(tmp_path, descend).steps) == 4


def test_hooks_that_only_look_at_gradients_update_nothing(tmp_path: Path) -> None:
    model, norms = make_model(), list[float]()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: norms.append(one.grad.norm().item()))

    def accumulate() -> None:
        for inputs, targets in make_loader(5):
            error_of(model, inputs, targets).backward()

    recorded = record_here(tmp_path, accumulate)
    assert not (recorded.rank / STEPS_FILE).exists()


def test_accumulating_before_the_first_update_is_no_update_by_hand(tmp_path: Path) -> None:
    def accumulate() -> None:
        model, optimizer = make_training()
        for number, (inputs, targets) in enumerate(make_loader(8), start=1):
            error_of(model, inputs, targets).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if number % 4 == 0:
                optimizer.step()

    recorded = record_here(tmp_path, accumulate)
    assert [step.micro_batches for step in recorded.steps] == [4, 4]
    assert recorded.events(StepsWithoutOptimizer) == []


@pytest.mark.parametrize(
    ("updates", "num_optimizers"),
    [
        (4 * (2 * CRITIC + GENERATOR), [1] * 12),
        (4 * CRITIC + 4 * BOTH, [1] * 8 + [2] * 2),
        (6 * BOTH, [1] * 2 + [2] * 5),
    ],
    ids=["more often than the other", "ahead, until the other one comes", "by turns"],
)
def test_without_a_loader_adversaries_make_a_step_of_each_update_or_of_each_round_once_they_take_turns(
    updates: tuple[str, ...], num_optimizers: list[int], tmp_path: Path
) -> None:
    steps = record_here(tmp_path, lambda: Adversaries().update(*updates)).steps
    assert len(steps) == len(num_optimizers)
    found = [stages(step) for step in steps[5:]]  # that one steps more often shows when it steps for the second time
    assert found == [number * OF_ADVERSARIES for number in num_optimizers[5:]]


def test_fine_tuning_in_evaluation_mode_is_training(tmp_path: Path) -> None:
    def tune() -> None:
        model = make_model().eval()
        train(model, make_loader(4), torch.optim.SGD(model.parameters(), lr=0.01))

    assert [step.samples for step in record_here(tmp_path, tune).steps] == [BATCH] * 4


def test_a_program_that_never_trains_leaves_no_rank_folder(tmp_path: Path) -> None:
    def infer() -> None:
        with torch.no_grad():
            make_model()(torch.randn(2, 3))

    assert not record_here(tmp_path, infer).rank.exists()


def fail_in(stage: str) -> None:
    model, optimizer = make_training()
    for number, (inputs, targets) in enumerate(make_loader(3)):
        if stage == "data":
            next(iter(DataLoader([None], collate_fn=lambda _: 1 / 0)))  # type: ignore[arg-type]
        loss = error_of(model, inputs[:, :2] if stage == "forward" else inputs, targets)
        if stage == "other" and number == 1:
            raise KeyError("the user's own")
        (loss.detach() if stage == "backward" else loss).backward()
        optimizer.step()


@pytest.mark.parametrize("stage", ["data", "forward", "backward", "other"])
def test_the_stage_that_an_error_ended_is_known(stage: str, tmp_path: Path) -> None:
    with running_session(tmp_path):
        with pytest.raises((RuntimeError, KeyError, ZeroDivisionError)) as raised:
            fail_in(stage)
        assert (failed_stage(raised.value) or "other") == stage


def test_errors_that_are_each_other_s_context_are_of_no_stage() -> None:
    first, second = KeyError(), ValueError()
    first.__context__, second.__context__ = second, first
    assert failed_stage(first) is None
