"""What the recorder sees of evaluations: forward passes in a row that no backward pass uses."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.utils.data import DataLoader, TensorDataset

from efprof.artifacts.readings import EvaluationRecord, read_evaluations
from efprof.artifacts.steps import read_steps
from efprof.model import NotRecorded
from efprof.units import KIB
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, record_here

NUM_TRAINED, NUM_EVALUATED = 6, 20
KEPT = 64 * KIB
"""Of each batch: 16 outputs of 1024 numbers."""


class Program:
    """Trains on one loader and evaluates on another, which `evaluate` of a subclass or a test goes through."""

    def __init__(self, **loading: object) -> None:
        torch.manual_seed(0)
        inputs = torch.randn(16 * NUM_EVALUATED, 8)
        self.train_loader = DataLoader(TensorDataset(inputs[: 16 * NUM_TRAINED]), batch_size=16)
        self.loader: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(TensorDataset(inputs), batch_size=16, **loading)  # type: ignore[arg-type]
        self.model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1024))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.kept: list[torch.Tensor] = []

    def train_epoch(self) -> None:
        self.model.train()
        for (batch,) in self.train_loader:
            self.optimizer.zero_grad()
            self.model(batch).square().mean().backward()
            self.optimizer.step()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for (batch,) in self.loader:
                self.kept.append(self.model(batch))  # kept

    def run(self) -> None:
        for _ in range(2):
            self.train_epoch()
            self.evaluate()


def evaluations_of(folder: Path, run: Callable[[], object]) -> list[EvaluationRecord]:
    return read_evaluations(record_here(folder, run).rank)


def none_of(recorded: Recorded) -> bool:
    try:
        return read_evaluations(recorded.rank) == []
    except NotRecorded:
        return True


def test_every_pass_without_gradients_is_one_evaluation(tmp_path: Path) -> None:
    first, second = evaluations_of(tmp_path, Program().run)
    assert (first.num_batches, first.after_step) == (NUM_EVALUATED, NUM_TRAINED - 1)
    assert second.after_step == 2 * NUM_TRAINED - 1
    assert first.site is not None
    assert first.site.endswith("Program.evaluate")
    assert first.total_us > 0


def test_memory_is_read_before_it_after_each_batch_and_at_its_end(tmp_path: Path) -> None:
    """The heap has what the outputs that are kept take of it."""
    first, _ = evaluations_of(tmp_path, Program().run)
    assert [each.num_batches for each in first.memory] == list(range(NUM_EVALUATED + 1))
    sizes = [each.allocated_bytes for each in first.memory]
    assert sizes[-1] - sizes[1] == pytest.approx((NUM_EVALUATED - 1) * KEPT, rel=0.2)
    assert first.peak_bytes == max(sizes)


def test_gradients_turned_off_for_the_model_s_call_alone_are_seen_in_evaluation_mode(tmp_path: Path) -> None:
    program = Program()

    def evaluate() -> None:
        program.model.eval()
        for (batch,) in program.loader:
            with torch.no_grad():
                program.kept.append(program.model(batch))

    program.evaluate = evaluate  # type: ignore[method-assign]
    first, _ = evaluations_of(tmp_path, program.run)
    assert first.num_batches == NUM_EVALUATED


class Breaking(Program):
    """Leaves the loop; a class, as an instance with a function of its own would lie in a cycle with its workers."""

    @torch.no_grad()
    def evaluate(self) -> None:
        for place, (batch,) in enumerate(self.loader, start=1):
            self.model(batch)
            if place == 5:
                break


@pytest.mark.parametrize("loading", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["", "workers are kept"])
def test_a_loop_that_is_left_is_told_as_far_as_it_came(loading: dict[str, object], tmp_path: Path) -> None:
    first, second = evaluations_of(tmp_path, Breaking(**loading).run)
    assert (first.num_batches, second.num_batches) == (5, 5)
    assert second.after_step == 2 * NUM_TRAINED - 1


def test_it_ends_where_its_loop_is_left_not_when_the_next_batch_is_asked_for(tmp_path: Path) -> None:
    def train_without_a_loader() -> None:
        program = Breaking()
        program.evaluate()
        for _ in range(3):
            program.optimizer.zero_grad()
            program.model(torch.randn(16, 8)).square().mean().backward()
            program.optimizer.step()

    (only,) = evaluations_of(tmp_path, train_without_a_loader)
    assert only.num_batches == 5


def train_beside_a_teacher(program: Program) -> None:
    teacher = nn.Linear(8, 1024).eval()
    for (batch,) in program.train_loader:
        with torch.no_grad():
            target = teacher(batch)
        program.optimizer.zero_grad()
        (program.model(batch) - target).square().mean().backward()
        program.optimizer.step()


def look_at_the_data(program: Program) -> None:
    """As for the mean of the inputs: gradients are on, and no module is in evaluation mode."""
    assert sum(batch.sum() for (batch,) in program.loader) != 0
    program.train_epoch()


@pytest.mark.parametrize("run", [Program.train_epoch, train_beside_a_teacher, look_at_the_data])
def test_what_trains_or_only_looks_at_the_data_is_no_evaluation(run: Callable[[Program], None], tmp_path: Path) -> None:
    assert none_of(record_here(tmp_path, partial(run, Program())))


def test_an_evaluation_before_the_first_step_or_in_the_midst_of_an_epoch_divides_no_step(tmp_path: Path) -> None:
    program = Program()

    def run() -> None:
        program.evaluate()
        for place, (batch,) in enumerate(program.train_loader):
            program.model.train()
            program.optimizer.zero_grad()
            program.model(batch).square().mean().backward()
            program.optimizer.step()
            if place == 2:
                program.evaluate()

    recorded = record_here(tmp_path, run)
    evaluations = read_evaluations(recorded.rank)
    assert [(one.num_batches, one.after_step) for one in evaluations] == [(NUM_EVALUATED, -1), (NUM_EVALUATED, 2)]
    assert len(recorded.steps) == NUM_TRAINED


def test_of_a_long_evaluation_the_first_batches_are_read_and_its_end(tmp_path: Path) -> None:
    program = Program()
    program.loader = DataLoader(TensorDataset(torch.randn(200, 8)), batch_size=1)
    first, _ = evaluations_of(tmp_path, program.run)
    assert first.num_batches == 200
    assert [each.num_batches for each in first.memory] == [*range(33), 200]


BATCHES = torch.randn(12, 32, 8)
IN_FULL_AND_LIGHT = pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL])


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))


class Plain:
    """Trains on tensors, without a loader; a test says what comes between."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def train(self, num_steps: int = 40) -> None:
        self.model.train()
        for number in range(num_steps):
            self.update(self.model(BATCHES[number % 12]).square().mean())

    def evaluate(self) -> list[torch.Tensor]:
        return [self.model(batch) for batch in BATCHES]


def evaluate_with_graphs(plain: Plain) -> None:
    for _ in range(2):
        plain.train()
        plain.model.eval()
        for batch in BATCHES:
            plain.model(batch)


def evaluate_compiled(plain: Plain) -> None:
    plain.model = torch.compile(plain.model, backend="eager")  # type: ignore[assignment]
    evaluate_with_graphs(plain)


def evaluate_between_micro_batches(plain: Plain) -> None:
    for number in range(80):
        plain.optimizer.zero_grad()
        plain.model(BATCHES[0]).mean().backward()
        if number % 40 == 39:
            plain.model.eval()
            plain.evaluate()
            plain.model.train()
        plain.model(BATCHES[1]).mean().backward()
        plain.optimizer.step()


@IN_FULL_AND_LIGHT
@pytest.mark.parametrize("run", [evaluate_with_graphs, evaluate_compiled, evaluate_between_micro_batches])
def test_one_that_builds_graphs_without_a_loader_is_seen(
    run: Callable[[Plain], None], overhead: float, tmp_path: Path
) -> None:
    first, second = read_evaluations(record_here(tmp_path, partial(run, Plain()), overhead=overhead).rank)
    assert [first.num_batches, second.num_batches] == [12, 12]
    assert second.after_step - first.after_step == 40
    assert first.graph_bytes is not None
    assert not first.is_rollout


def test_what_announces_nothing_is_seen_once_graphs_were_built_between_steps(tmp_path: Path) -> None:
    plain = Plain()

    def run() -> None:
        for _ in range(4):
            plain.train(60)
            plain.evaluate()

    records = read_evaluations(record_here(tmp_path, run, overhead=HARDLY_ANY_IN_FULL).rank)
    assert len(records) >= 2, "one may be missed, where none of its steps is recorded in full"
    assert {one.num_batches for one in records} == {12}


def test_nothing_is_watched_in_light_steps_where_every_graph_belongs_to_a_step(tmp_path: Path) -> None:
    """With four passes a step, light steps begin at the first: what follows of that step is not between two of them."""
    plain, watched = Plain(), []

    def run() -> None:
        for _ in range(200):
            plain.optimizer.zero_grad()
            for batch in BATCHES[:4]:
                watched.append(bool(_global_forward_pre_hooks))
                plain.model(batch).square().mean().backward()
            plain.optimizer.step()

    in_full = sum(
        bool(step.spans) for step in read_steps(record_here(tmp_path, run, overhead=HARDLY_ANY_IN_FULL).rank)[0]
    )
    assert sum(watched) <= 4 * in_full + 100


def test_graphs_that_are_kept_are_counted_and_weighed(tmp_path: Path) -> None:
    plain = Plain()

    def run() -> None:
        plain.train()
        plain.model.eval()
        plain.evaluate()
        plain.train()

    (only,) = read_evaluations(record_here(tmp_path, run).rank)
    assert only.num_alive == 12
    hidden = 32 * 64 * 4
    assert only.graph_bytes is not None
    assert hidden <= only.graph_bytes < 2 * hidden  # and the nodes themselves


def act(plain: Plain) -> None:
    """Every fourth turn is followed by an update."""
    for number in range(120):
        plain.model(torch.randn(1, 8)).argmax().item()
        if number % 4 == 3:
            plain.update(plain.model(BATCHES[number % 12]).square().mean())


def act_in_evaluation_mode(plain: Plain) -> None:
    for _ in range(30):
        plain.model.eval()
        with torch.no_grad():
            for _ in range(4):
                plain.model(torch.randn(1, 8)).argmax().item()
        plain.model.train()
        plain.update(plain.model(BATCHES[0]).square().mean())


@IN_FULL_AND_LIGHT
@pytest.mark.parametrize("how", [act, act_in_evaluation_mode])
def test_a_policy_that_acts_on_smaller_inputs_rolls_out(
    how: Callable[[Plain], None], overhead: float, tmp_path: Path
) -> None:
    records = read_evaluations(record_here(tmp_path, partial(how, Plain()), overhead=overhead).rank)
    assert records
    assert {one.is_rollout for one in records} == {True}
    assert {one.num_batches for one in records} == {4}


def act_in_many_environments(plain: Plain) -> None:
    """The batches are as large as those that are trained on."""
    for _ in range(8):
        with torch.no_grad():
            for number in range(100):
                plain.model(BATCHES[number % 12].clone())
        for number in range(4):
            plain.update(plain.model(BATCHES[number]).square().mean())


@IN_FULL_AND_LIGHT
def test_acting_in_training_mode_without_gradients_is_a_rollout_and_every_pass_counts(
    overhead: float, tmp_path: Path
) -> None:
    records = read_evaluations(
        record_here(tmp_path, partial(act_in_many_environments, Plain()), overhead=overhead).rank
    )
    assert records
    assert {one.is_rollout for one in records} == {True}
    assert {one.num_batches for one in records} == {100}


def look_at_parts_of_the_data(plain: Plain) -> None:
    """In training mode, without gradients, a few rows at a time."""
    for _ in range(4):
        plain.train(20)
        with torch.no_grad():
            for part in BATCHES.flatten(0, 1).split(4):
                plain.model(part)


@IN_FULL_AND_LIGHT
def test_what_goes_through_parts_of_the_data_is_no_rollout(overhead: float, tmp_path: Path) -> None:
    recorded = record_here(tmp_path, partial(look_at_parts_of_the_data, Plain()), overhead=overhead)
    assert not any(one.is_rollout for one in read_evaluations(recorded.rank))


def train_a_pair(plain: Plain) -> None:
    critic = nn.Linear(4, 1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    for number in range(60):
        fake, other = plain.model(BATCHES[number % 12]), plain.model(BATCHES[0])
        of_critic.zero_grad()
        (critic(fake.detach()) - critic(other.detach())).mean().backward()
        of_critic.step()
        plain.update(-critic(fake).mean() - critic(other).mean())


def skip_batches(plain: Plain) -> None:
    for number in range(90):
        loss = plain.model(BATCHES[number % 12]).square().mean()
        if number % 9 < 6:
            plain.update(loss)


def detach_a_target_and_probe_the_shape(plain: Plain) -> None:
    plain.model(BATCHES[0])
    for number in range(60):
        target = plain.model(BATCHES[number % 12]).detach()
        plain.update((plain.model(BATCHES[0]) - target).square().mean())


def use_several(plain: Plain) -> None:
    for _ in range(60):
        plain.update(torch.stack([plain.model(batch) for batch in BATCHES]).square().mean())


def checkpoint_layers(plain: Plain) -> None:
    for number in range(60):
        hidden = BATCHES[number % 12]
        for layer in plain.model.children():
            hidden = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)
        plain.update(hidden.square().mean())


def ask_a_teacher(plain: Plain) -> None:
    teacher = make_model().eval()
    for number in range(60):
        target = torch.stack([teacher(batch) for batch in BATCHES]).mean(0).detach()
        plain.update((plain.model(BATCHES[number % 12]) - target).square().mean())


@IN_FULL_AND_LIGHT
@pytest.mark.parametrize(
    "run",
    [train_a_pair, skip_batches, detach_a_target_and_probe_the_shape, use_several, checkpoint_layers, ask_a_teacher],
)
def test_forward_passes_that_are_used_later_or_now_and_then_are_not_are_no_evaluation(
    run: Callable[[Plain], None], overhead: float, tmp_path: Path
) -> None:
    assert none_of(record_here(tmp_path, partial(run, Plain()), overhead=overhead))
