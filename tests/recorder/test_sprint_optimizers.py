"""Steps with an update by each of several optimizers are recorded together, too, and read as if they were not."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.events import NonFiniteSeen
from efprof.recorder.collectors import numbers
from efprof.recorder.sprint import Sprint
from tests.recorder.recording import read_memory_of_every_step, record_here
from tests.recorder.test_loop import BATCH, error_of, make_loader, make_model, stages
from tests.recorder.test_sprint import described, record_both_ways

LONG = 60
ROUND = ["data", "forward", "backward", "optimizer", "forward", "backward", "optimizer"]

Batch = tuple[torch.Tensor, ...]
Pair = list[tuple[torch.nn.Module, torch.optim.Optimizer]]


def make_smooth_model() -> torch.nn.Sequential:
    """Whose gradients are never zero: one that is has all of them read."""
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def make_pair() -> Pair:
    torch.manual_seed(1)
    models = [make_smooth_model(), make_smooth_model()]
    return [(model, torch.optim.SGD(model.parameters(), lr)) for model, lr in zip(models, (0.01, 0.02), strict=True)]


def made_batches(num_batches: int = LONG) -> Iterator[Batch]:
    """Which no loader gives."""
    for _ in range(num_batches):
        inputs = torch.randn(BATCH, 3)
        yield inputs, inputs.sum(1, keepdim=True)


def update(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    optimizer.zero_grad()
    error_of(model, inputs, targets).backward()
    optimizer.step()


def test_a_generator_and_a_critic_leave_the_same_steps_as_without_a_sprint() -> None:
    def train_against_each_other() -> None:
        torch.manual_seed(1)
        generator, critic = torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
        of_generator, of_critic = (torch.optim.Adam(model.parameters(), lr) for model, lr in
                                   ((generator, 1e-3), (critic, 4e-3)))  # fmt: skip
        for inputs, _ in make_loader(LONG):
            made = generator(torch.randn(BATCH, 2))
            of_critic.zero_grad()
            (-critic(inputs).mean()).backward()
            critic(made.detach()).mean().backward()
            of_critic.step()
            of_generator.zero_grad()
            (-critic(made).mean()).backward()
            of_generator.step()

    sprinted, walked, num_sprinted = record_both_ways(train_against_each_other)
    assert described(sprinted) == described(walked)
    assert {step.learning_rate for step in sprinted} == {4e-3}, "of the optimizer that steps first"
    assert [step.micro_batches for step in sprinted] == [3] * LONG
    assert num_sprinted > LONG / 3


def test_optimizers_that_take_turns_without_a_loader_sprint_too() -> None:
    def train_on_made_tensors() -> None:
        pair = make_pair()
        for inputs, targets in made_batches():
            for model, optimizer in pair:
                update(model, optimizer, inputs, targets)

    sprinted, walked, num_sprinted = record_both_ways(train_on_made_tensors)
    assert described(sprinted) == described(walked)
    assert [stages(step) for step in sprinted[2:]] == [ROUND[1:]] * (len(sprinted) - 2)
    assert num_sprinted > LONG / 3


KINDS = ("both", "read between", "by turns", "first alone", "second alone", "first twice", "a third", "scored")


def run_step(kind: str, pair: Pair, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    of_step = {"by turns": pair[1::-1], "first alone": pair[:1], "second alone": pair[1:2], "a third": pair,
               "first twice": [pair[0], *pair[:2]]}.get(kind, pair[:2])  # fmt: skip
    for number, (model, optimizer) in enumerate(of_step):
        if kind == "scored" and number == 0:
            optimizer.zero_grad()
            error_of(model, inputs, targets).backward(torch.tensor(0.5))
            optimizer.step()
            continue
        update(model, optimizer, inputs, targets)
        if kind == "read between" and number == 0:
            pair[1][0](inputs).sum().item()


@pytest.mark.parametrize("has_loader", [True, False])
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 9)), min_size=1, max_size=8))
def test_whatever_breaks_a_sprint_of_two_optimizers_leaves_the_same_steps(
    has_loader: bool, program: list[tuple[str, int]]
) -> None:
    kinds = ["both"] * 28 + [kind for kind, count in program for _ in range(count)]

    def train_in_turns() -> None:
        third = make_model()
        pair = [*make_pair(), (third, torch.optim.SGD(third.parameters(), lr=0.03))]
        batches = (make_loader if has_loader else made_batches)(len(kinds))
        for kind, (inputs, targets) in zip(kinds, batches, strict=False):
            run_step(kind, pair, inputs, targets)

    sprinted, walked, num_sprinted = record_both_ways(train_in_turns)
    assert described(sprinted) == described(walked)
    assert num_sprinted > 0


def test_a_sprint_that_ends_between_two_updates_leaves_the_optimizers_their_turns() -> None:
    def train_and_read() -> None:
        pair = make_pair()
        for number, (inputs, targets) in enumerate(made_batches()):
            update(*pair[0], inputs, targets)
            if number % 15 == 14:
                with torch.no_grad():
                    pair[0][0](inputs)
            update(*pair[1], inputs, targets)

    sprinted, walked, num_sprinted = record_both_ways(train_and_read)
    assert described(sprinted) == described(walked)
    assert {step.micro_batches for step in sprinted[2:]} == {2}, "a round each, to the end"
    assert num_sprinted > LONG / 4


def test_optimizers_that_change_their_order_within_a_sprint_take_no_turns_any_more() -> None:
    def train_then_turn_around() -> None:
        pair = make_pair()
        for number, (inputs, targets) in enumerate(made_batches()):
            for model, optimizer in pair if number < 40 else pair[::-1]:
                update(model, optimizer, inputs, targets)

    sprinted, walked, num_sprinted = record_both_ways(train_then_turn_around)
    assert described(sprinted) == described(walked)
    assert stages(sprinted[-1]) == ["forward", "backward", "optimizer"], "each is a step of its own"
    assert num_sprinted > LONG / 4


def test_new_optimizers_are_sprinted_with_after_a_while() -> None:
    def train_anew() -> None:
        loader = make_loader(LONG)
        for _ in range(2):
            pair = make_pair()
            for inputs, targets in loader:
                for model, optimizer in pair:
                    update(model, optimizer, inputs, targets)

    sprinted, walked, num_sprinted = record_both_ways(train_anew)
    assert described(sprinted) == described(walked)
    assert num_sprinted > LONG


@pytest.mark.parametrize("clipped", [(0,), (1,), (0, 1)])
def test_a_step_has_the_norm_of_all_gradients_where_all_were_clipped_and_none_where_some_were(
    clipped: tuple[int, ...],
) -> None:
    norms: list[float] = []

    def train_clipped() -> None:
        norms.clear()
        pair = make_pair()
        for inputs, targets in make_loader(LONG):
            squares = 0.0
            for number, (model, optimizer) in enumerate(pair):
                optimizer.zero_grad()
                error_of(model, inputs, targets).backward()
                if number in clipped:
                    squares += float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)) ** 2
                optimizer.step()
            norms.append(math.sqrt(squares))

    sprinted, walked, num_sprinted = record_both_ways(train_clipped)
    assert described(sprinted) == described(walked)
    in_short = [number for number, step in enumerate(sprinted) if step.num_gradients is None]
    expected = [norms[number] if len(clipped) == 2 else None for number in in_short]
    assert [sprinted[number].gradient_norm for number in in_short] == pytest.approx(expected)
    assert len(in_short) > LONG / 4
    assert num_sprinted > LONG / 3


def test_norms_are_added_up_where_the_stopwatch_can_read_only_one_of_them() -> None:
    norms: list[float] = []

    def train_clipped() -> None:
        norms.clear()
        pair = make_pair()
        pair[1][0].double()
        for inputs, targets in make_loader(LONG):
            squares = 0.0
            for (model, optimizer), dtype in zip(pair, (torch.float32, torch.float64), strict=True):
                optimizer.zero_grad()
                error_of(model, inputs.to(dtype), targets.to(dtype)).backward()
                squares += float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)) ** 2
                optimizer.step()
            norms.append(math.sqrt(squares))

    sprinted, _, num_sprinted = record_both_ways(train_clipped)
    assert [step.gradient_norm for step in sprinted] == pytest.approx(norms)
    assert num_sprinted > LONG / 3


def test_a_norm_of_a_sprint_that_ends_before_the_update_is_added_to_that_of_the_next_optimizer() -> None:
    norms: list[float] = []

    def train_and_evaluate() -> None:
        norms.clear()
        (first, of_first), (second, of_second) = make_pair()
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            of_first.zero_grad()
            error_of(first, inputs, targets).backward()
            norm = float(torch.nn.utils.clip_grad_norm_(first.parameters(), 1.0))
            if number % 15 == 14:
                with torch.no_grad():
                    first(inputs)
            of_first.step()
            of_second.zero_grad()
            error_of(second, inputs, targets).backward()
            norms.append(math.hypot(norm, float(torch.nn.utils.clip_grad_norm_(second.parameters(), 1.0))))
            of_second.step()

    sprinted, _, num_sprinted = record_both_ways(train_and_evaluate)
    in_short = [number for number, step in enumerate(sprinted) if step.num_gradients is None]
    assert [sprinted[number].gradient_norm for number in in_short] == pytest.approx(
        [norms[number] for number in in_short]
    )
    assert {29, 44, 59} & set(in_short), "some of them"
    assert num_sprinted > LONG / 4


def test_a_step_keeps_the_rate_of_its_first_optimizer_where_the_gradients_of_the_second_have_to_be_read() -> None:
    def train_on_nothing_at_times() -> None:
        (first, second) = make_pair()
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            update(*first, inputs, targets)
            model, optimizer = second
            optimizer.zero_grad()
            (error_of(model, inputs, targets) * (number % 7 != 3)).backward()
            optimizer.step()

    sprinted, walked, num_sprinted = record_both_ways(train_on_nothing_at_times)
    assert described(sprinted) == described(walked)
    assert {step.learning_rate for step in sprinted} == {0.01}
    assert num_sprinted > LONG / 3


def test_gradients_are_read_of_all_optimizers_or_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "MAX_STRIDE", 7)

    def train_pair() -> None:
        pair = make_pair()
        for inputs, targets in make_loader(3 * LONG):
            for model, optimizer in pair:
                update(model, optimizer, inputs, targets)

    counts = [step.num_gradients for step in record_here(tmp_path, train_pair).steps]
    assert set(counts) == {None, 8}, "two layers each, with a weight and a bias"
    assert counts[LONG:].count(8) >= 10


@pytest.mark.parametrize("spoilt", [0, 1])
def test_a_gradient_that_turns_bad_within_a_sprint_is_seen_whichever_optimizer_applies_it(
    spoilt: int, tmp_path: Path
) -> None:
    def train_into_nan() -> None:
        pair = make_pair()
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            for place, (model, optimizer) in enumerate(pair):
                optimizer.zero_grad()
                error_of(model, inputs, targets).backward()
                if (number, place) == (45, spoilt):
                    for parameter in model.parameters():
                        parameter.grad *= float("nan")
                optimizer.step()

    (seen,) = record_here(tmp_path, train_into_nan).events(NonFiniteSeen)
    assert (seen.step, seen.what) == (45, "gradient")


def test_a_step_is_named_by_the_line_of_its_last_backward_pass_wherever_the_others_are() -> None:
    def train_by_other_lines() -> None:
        (first, of_first), (second, of_second) = make_pair()
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            loss = error_of(first, inputs, targets)
            if number == 45:
                loss.backward()
            else:
                loss.backward()
            of_first.step()
            update(second, of_second, inputs, targets)

    sprinted, walked, num_sprinted = record_both_ways(train_by_other_lines)
    assert described(sprinted) == described(walked)
    assert len({step.backward_site for step in sprinted}) == 1
    assert num_sprinted > LONG / 3


def test_a_loss_that_is_no_plain_number_is_not_taken_for_one_because_another_is() -> None:
    def train_on_a_negated_view() -> None:
        (first, of_first), (second, of_second) = make_pair()
        for inputs, targets in make_loader(LONG):
            torch._neg_view(error_of(first, inputs, targets)).backward()
            of_first.step()
            update(second, of_second, inputs, targets)

    sprinted, walked, _ = record_both_ways(train_on_a_negated_view)
    assert described(sprinted) == described(walked)


def test_memory_is_read_after_the_last_update_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_memory_of_every_step(monkeypatch)

    def train_pair() -> None:
        pair = make_pair()
        for inputs, targets in make_loader(3 * LONG):
            for model, optimizer in pair:
                update(model, optimizer, inputs, targets)

    steps = record_here(tmp_path, train_pair).steps
    read = [step for step in steps[LONG:] if step.memory]
    assert read
    for step in read:
        assert [here.boundary for here in step.memory][-1] == "post_optimizer_step"
        assert step.memory[-1].at_us >= step.spans[-1].end_us


def test_optimizers_that_take_turns_from_batch_to_batch_start_no_sprint_that_the_next_one_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    start = Sprint._begin

    def counted(self: Sprint, at: int) -> None:
        started.append(at)
        start(self, at)

    monkeypatch.setattr(Sprint, "_begin", counted)

    def train_by_turns() -> None:
        pair = make_pair()
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            update(*pair[number % 2], inputs, targets)

    steps = record_here(tmp_path, train_by_turns).steps
    assert len(steps) == LONG
    assert started == []
