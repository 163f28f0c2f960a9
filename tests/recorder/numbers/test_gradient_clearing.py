"""What becomes of gradients between an optimizer's steps: kept only where nothing at all touches them."""

import gc
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, GradientClearing
from efprof.recorder.budget.sampling import FIRST_STEPS
from efprof.recorder.numbers.gradient_clearing import MIN_OF_LINE, NUM_STEPS
from tests.recorder.programs.clearing_programs import (
    BRANCHES,
    FAULTY,
    HEALTHY,
    LENGTH,
    Program,
    accumulate,
    adversaries,
    loss_of,
    model_of,
    take_branches,
    train,
)
from tests.recorder.recording import Recorded, line_of, record_here
from tests.simulated_cuda.cuda import SimulatedCuda

PROGRAMS = Path(__file__).parents[1] / "programs" / "clearing_programs.py"


def kept(recorded: Recorded) -> list[GradientClearing]:
    assert recorded.events(CollectorStopped) == []
    return [event for event in recorded.events(GradientClearing) if event.outcome == "kept"]


@pytest.mark.parametrize("program", HEALTHY.values(), ids=HEALTHY.keys())
def test_gradients_that_somebody_touches_are_not_called_kept(tmp_path: Path, program: Program) -> None:
    assert kept(record_here(tmp_path, program)) == []


@pytest.mark.parametrize(("program", "optimizer"), FAULTY.values(), ids=FAULTY.keys())
def test_gradients_that_nobody_clears_are_kept(tmp_path: Path, program: Program, optimizer: str) -> None:
    (event,) = kept(record_here(tmp_path, program))
    assert event.optimizer == optimizer
    assert event.num_steps == NUM_STEPS
    assert event.backward_sites
    assert event.step_site


@pytest.mark.parametrize("program", BRANCHES.values(), ids=BRANCHES.keys())
def test_a_branch_that_never_clears_is_told_with_its_own_line(tmp_path: Path, program: Program) -> None:
    (event,) = kept(record_here(tmp_path, program))
    assert [site.split(":")[1] for site in event.backward_sites] == [str(line_of(PROGRAMS, "second"))]
    assert event.num_steps >= MIN_OF_LINE
    assert event.num_cleared > 0


def test_the_branch_that_follows_one_that_never_clears_is_told_where_each_clears_after_its_step(
    tmp_path: Path,
) -> None:
    (event,) = kept(record_here(tmp_path, partial(take_branches, is_after=True)))
    assert [site.split(":")[1] for site in event.backward_sites] != [str(line_of(PROGRAMS, "second"))]


def test_two_branches_neither_of_which_clears_are_told_of_once(tmp_path: Path) -> None:
    (event,) = kept(record_here(tmp_path, partial(take_branches, clears="")))
    assert (event.num_steps, event.num_cleared) == (NUM_STEPS, 0)


def test_the_lines_of_backward_and_step_are_kept(tmp_path: Path) -> None:
    (event,) = kept(record_here(tmp_path, train))
    lines = PROGRAMS.read_text().splitlines()
    (backward,) = event.backward_sites
    assert event.step_site is not None
    places = [site.split(":") for site in (backward, event.step_site)]
    texts = [lines[int(line) - 1].strip() for _, line, _ in places]
    assert texts == ["loss.backward()", "optimizer.step()"]
    assert {function for _, _, function in places} == {"train"}


def test_the_passes_of_a_step_stand_once_by_their_line(tmp_path: Path) -> None:
    (event,) = kept(record_here(tmp_path, partial(accumulate, clears=False)))
    assert (len(event.backward_sites), event.num_earlier_backwards) == (1, 0)


def test_a_critics_own_pass_is_blamed_and_the_generators_counted(tmp_path: Path) -> None:
    (event,) = kept(record_here(tmp_path, partial(adversaries, clears_critic=False)))
    (site,) = event.backward_sites
    text = PROGRAMS.read_text().splitlines()[int(site.split(":")[1]) - 1]
    assert "made.detach()" in text
    assert event.num_earlier_backwards == 1


def test_two_optimizers_of_one_pass_are_both_told_of(tmp_path: Path) -> None:
    def share() -> None:
        model = model_of()
        optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())]
        for _ in range(LENGTH):
            loss_of(model).backward()
            for optimizer in optimizers:
                optimizer.step()

    events = kept(record_here(tmp_path, share))
    assert [event.optimizer for event in events] == ["SGD", "Adam"]
    assert {event.num_earlier_backwards for event in events} == {0}
    assert events[0].backward_sites == events[1].backward_sites


def test_it_is_told_when_they_are_cleared_and_nothing_where_they_are_changed_in_place(tmp_path: Path) -> None:
    (event,) = record_here(tmp_path / "gone", partial(train, before="optimizer")).events(GradientClearing)
    assert (event.outcome, event.step) == ("cleared", 1)
    assert record_here(tmp_path / "zero", partial(train, before="in place")).events(GradientClearing) == []


def test_what_a_step_does_to_its_gradients_leaves_it_open_who_changed_them(tmp_path: Path) -> None:
    program = partial(train, momentum=0.9, nesterov=True, foreach=True)  # adds the momentum to them in place
    assert record_here(tmp_path, program).events(GradientClearing) == []


@pytest.mark.parametrize(("clears", "outcomes"), [(False, ["kept"]), (True, [])])
def test_a_device_tells_late_whether_there_is_anything_to_clear(
    tmp_path: Path, clears: bool, outcomes: list[str]
) -> None:
    """Not the current one, and it is behind."""

    def train_there() -> None:
        weight = torch.ones(8, device="cuda:1").requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.01)
        for _ in range(LENGTH):
            if clears and weight.grad is not None:
                weight.grad.data.zero_()
            weight.square().sum().backward()
            optimizer.step()
            cuda.launch(5, device=1)

    with SimulatedCuda(2).in_place() as cuda:
        recorded = record_here(tmp_path, train_there)
    assert [event.outcome for event in recorded.events(GradientClearing)] == outcomes
    assert recorded.events(CollectorStopped) == []
    assert cuda.waits_of("efprof/recorder") == []


def test_a_device_tells_late_of_a_branch_that_never_clears(tmp_path: Path) -> None:
    def train_there() -> None:
        weight = torch.ones(8, device="cuda:1").requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.01)
        for number in range(2 * FIRST_STEPS):
            if number % 2:
                optimizer.zero_grad()
                weight.square().sum().backward()
            else:
                weight.square().sum().backward()  # on a device
            optimizer.step()
            cuda.launch(5, device=1)

    with SimulatedCuda(2).in_place() as cuda:
        recorded = record_here(tmp_path, train_there)
    (event,) = kept(recorded)
    assert [site.split(":")[1] for site in event.backward_sites] == [str(line_of(Path(__file__), "on a device"))]
    assert cuda.waits_of("efprof/recorder") == []


def test_too_few_steps_say_nothing(tmp_path: Path) -> None:
    def train_shortly() -> None:
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(NUM_STEPS):
            loss_of(model).backward()
            optimizer.step()

    assert record_here(tmp_path, train_shortly).events(GradientClearing) == []


def test_it_looks_at_the_first_steps_only(tmp_path: Path) -> None:
    def train_both() -> None:
        train(before="optimizer")
        train(before="optimizer")

    seen = record_here(tmp_path, train_both).events(GradientClearing)
    assert [event.step < FIRST_STEPS for event in seen] == [True, True]
    assert 2 * LENGTH > FIRST_STEPS

    def train_thrice() -> None:
        train_both()
        train()

    later = record_here(tmp_path / "thrice", train_thrice).events(GradientClearing)
    assert [event.outcome for event in later] == ["cleared", "cleared"]


def test_it_keeps_no_parameter_alive(tmp_path: Path) -> None:
    left: list[weakref.ref[torch.Tensor]] = []

    def train_and_drop() -> None:
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            loss_of(model).backward()
            optimizer.step()
        left.extend(weakref.ref(one) for one in model.parameters())
        left.extend(weakref.ref(one.grad) for one in model.parameters() if one.grad is not None)

    def train_in_full() -> None:
        train_and_drop()
        gc.collect()
        assert [one() for one in left] == [None] * 8

    assert record_here(tmp_path, train_in_full).events(CollectorStopped) == []
