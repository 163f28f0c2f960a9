"""Short steps that are all alike are recorded in another way, and must read as if they were not."""

import itertools
import os
import signal
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.pending import FILE_BYTES, MAX_PENDING, PENDING_FILE, read_pending
from efprof.artifacts.steps import STEPS_FILE, StepRecord, read_steps
from efprof.recorder import memory, pattern, sprint, stopwatches
from efprof.recorder.end_readings import MAX_COSTLY_STRIDE, EndReadings
from efprof.recorder.sprinted_steps import SprintedSteps
from efprof.recorder.steps import Steps
from efprof.recorder.stopwatches import NoStopwatch
from efprof.units import MIB
from tests.recorder.conftest import Begin
from tests.recorder.recording import open_session, read_memory_of_every_step, record_here
from tests.recorder.test_loop import BATCH, error_of, make_loader, make_model, stages, train

LONG = 60


def described(steps: list[StepRecord]) -> list[tuple[object, ...]]:
    """Whatever of a step does not depend on the clock."""
    return [
        (step.step, stages(step), step.samples, step.micro_batches, step.loader, step.loss, step.learning_rate,
         step.backward_site, step.sequence and step.sequence - (steps[0].sequence or 0),
         [(read.site, read.count) for read in step.reads])
        for step in steps
    ]  # fmt: skip


def record_both_ways(train_it: Callable[[], object]) -> tuple[list[StepRecord], list[StepRecord], int]:
    """With sprints and without; and how many steps were sprinted."""
    recorded, num_sprinted = [], 0
    write = SprintedSteps.write

    def counted(self: SprintedSteps) -> None:
        nonlocal num_sprinted
        num_before = self._steps.num_finished
        write(self)
        num_sprinted += self._steps.num_finished - num_before

    for alike in (pattern.NUM_ALIKE, 10**9):
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            patch.setattr(pattern, "NUM_ALIKE", alike)
            patch.setattr(SprintedSteps, "write", counted)
            torch.manual_seed(0)
            run = record_here(Path(folder) / "run", train_it)
            assert run.events(CollectorStopped) == []
            recorded.append(run.steps)
    return recorded[0], recorded[1], num_sprinted


def train_long() -> None:
    model = make_model()
    train(model, make_loader(LONG), torch.optim.SGD(model.parameters(), lr=0.01))


def test_a_sprint_takes_place_and_leaves_the_same_steps() -> None:
    sprinted, walked, num_sprinted = record_both_ways(train_long)
    assert described(sprinted) == described(walked)
    assert num_sprinted > LONG / 3


def test_sprinted_steps_follow_each_other_without_a_gap() -> None:
    steps, _, _ = record_both_ways(train_long)
    gaps = [
        after.started_ns - before.started_ns - before.total_us * 1000 for before, after in itertools.pairwise(steps)
    ]
    assert sum(abs(gap) < 1000 for gap in gaps) > LONG / 3, "where they are sprinted, one ends as the next begins"
    for step in steps:
        instants = [instant for span in step.spans for instant in (span.start_us, span.end_us)]
        assert instants == sorted(instants)
        assert instants[-1] <= step.total_us


KINDS = ("plain", "scaled", "clipped", "accumulated", "evaluated", "taught", "read", "failed", "two at once", "by hand")


def run_step(kind: str, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], batches: object) -> None:
    optimizer = optimizers[0]
    for _ in range(2 if kind == "accumulated" else 1):
        inputs, targets = next(batches)  # type: ignore[call-overload]
        if kind == "taught":
            with torch.no_grad():
                targets = targets + 0 * model(inputs)
        if kind == "failed":
            with pytest.raises(RuntimeError):
                model(inputs[:, :2])
        loss = error_of(model, inputs, targets)
        if kind == "read":
            loss.item()
        loss.backward()
    if kind == "clipped":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if kind == "by hand":
        torch.autograd.grad(model(inputs).sum(), list(model.parameters()))
    if kind == "scaled":
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    if kind == "two at once":
        optimizers[1].step()
    optimizer.zero_grad()
    if kind == "evaluated":
        model.eval()
        error_of(model, inputs, targets)
        model.train()


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12)), min_size=1, max_size=8))
def test_whatever_breaks_a_sprint_leaves_the_same_steps(program: list[tuple[str, int]]) -> None:
    kinds = ["plain"] * 28 + [kind for kind, count in program for _ in range(count)]

    def train_in_turns() -> None:
        torch.manual_seed(1)
        model = make_model()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
        batches = iter(make_loader(2 * len(kinds)))
        for kind in kinds:
            run_step(kind, model, list(optimizers), batches)

    sprinted, walked, _ = record_both_ways(train_in_turns)
    assert described(sprinted) == described(walked)


def test_epochs_end_a_sprint_and_lose_nothing() -> None:
    def train_epochs() -> None:
        model, loader = make_model(), make_loader(13)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            train(model, loader, optimizer)

    sprinted, walked, num_sprinted = record_both_ways(train_epochs)
    assert described(sprinted) == described(walked)
    assert [step.samples for step in sprinted] == [BATCH] * 78
    assert num_sprinted > 20


def test_a_teacher_that_joins_after_an_epoch_costs_no_step_its_batch() -> None:
    def distil() -> None:
        torch.manual_seed(1)
        model, teacher, loader = make_model(), make_model(), make_loader(20)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(4):
            for inputs, targets in loader:
                if epoch >= 2:
                    with torch.no_grad():
                        targets = teacher(inputs)
                optimizer.zero_grad()
                error_of(model, inputs, targets).backward()
                optimizer.step()

    sprinted, walked, num_sprinted = record_both_ways(distil)
    assert described(sprinted) == described(walked)
    assert [(step.samples, step.loader) for step in sprinted] == [(BATCH, 0)] * 80
    assert num_sprinted > 10, "to the end of an epoch without the teacher"


@pytest.mark.parametrize("num_updates", [2, 3, 5])
def test_several_updates_of_one_batch_are_steps_of_their_own_in_a_sprint_too(num_updates: int) -> None:
    def train_on_parts() -> None:
        torch.manual_seed(1)
        model, loader = make_model(), make_loader(LONG // 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for inputs, targets in loader:
                for _ in range(num_updates):
                    optimizer.zero_grad()
                    error_of(model, inputs, targets).backward()
                    optimizer.step()

    sprinted, walked, num_sprinted = record_both_ways(train_on_parts)
    assert described(sprinted[num_updates:]) == described(walked[num_updates:])
    passes = ["forward", "backward", "optimizer"]
    batches = [sprinted[first : first + num_updates] for first in range(0, len(sprinted), num_updates)]
    assert len(batches) == LONG
    for batch in batches[1:]:  # the first one shows what this loop does
        first, *others = batch
        assert [stages(step)[-3:] for step in batch] == [passes] * num_updates
        assert (set(stages(first)[:-3]), first.samples, first.loader) == ({"data"}, BATCH, 0)
        assert [(len(step.spans), step.samples) for step in others] == [(3, 0)] * (num_updates - 1)
        assert [step.micro_batches for step in batch] == [1] * num_updates
    assert all(step.loss is not None for step in sprinted[num_updates:])
    assert num_updates < 5 or num_sprinted > LONG / 2


def test_a_loop_without_a_loader_sprints_too() -> None:
    def train_on_made_tensors() -> None:
        torch.manual_seed(1)
        model = torch.nn.Sequential(make_model())  # the outermost module's class is that of a module inside as well
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(LONG):
            inputs = torch.randn(BATCH, 3)
            optimizer.zero_grad()
            error_of(model, inputs, inputs.sum(1, keepdim=True)).backward()
            optimizer.step()

    sprinted, walked, num_sprinted = record_both_ways(train_on_made_tensors)
    assert described(sprinted) == described(walked)
    assert num_sprinted > LONG / 3


def test_a_step_whose_second_optimizer_breaks_a_sprint_keeps_the_rate_of_its_first() -> None:
    def train_the_second_rarely() -> None:
        models = [make_model(), make_model()]
        first, second = (
            torch.optim.SGD(model.parameters(), lr) for model, lr in zip(models, (0.01, 0.07), strict=True)
        )
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            trained = [first, second] if number % 20 == 19 else [first]
            for model, optimizer in zip(models, trained, strict=False):
                optimizer.zero_grad()
                error_of(model, inputs, targets).backward()
                optimizer.step()

    sprinted, walked, num_sprinted = record_both_ways(train_the_second_rarely)
    assert [step.learning_rate for step in sprinted] == [0.01] * LONG
    assert described(sprinted) == described(walked)
    assert num_sprinted > LONG / 4


def test_a_loss_that_turns_bad_within_a_sprint_is_seen_where_it_happens(tmp_path: Path) -> None:
    from efprof.artifacts.events import NonFiniteSeen

    def train_into_nan() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            loss = error_of(model, inputs, targets) * (float("nan") if number == 45 else 1.0)
            loss.backward()
            optimizer.step()

    recorded = record_here(tmp_path, train_into_nan)
    (seen,) = recorded.events(NonFiniteSeen)
    assert (seen.step, seen.what) == (45, "loss")
    assert seen.site is not None
    assert [step.step for step in recorded.steps if step.loss == "nan"] == list(range(45, LONG))


def train_with_scores() -> None:
    """From step 40 on, every third loss is given a gradient, at the line of the others, by either kind of call."""
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (inputs, targets) in enumerate(make_loader(LONG)):
        gradient = torch.tensor(-0.5) if number >= 40 and number % 3 == 0 else None
        loss = error_of(model, inputs, targets)
        if number < 50:
            loss.backward(gradient)
        else:
            torch.autograd.backward(loss, grad_tensors=gradient)
        optimizer.step()
        optimizer.zero_grad()


def test_a_gradient_that_is_first_given_within_a_sprint_counts_there() -> None:
    sprinted, walked, num_sprinted = record_both_ways(train_with_scores)
    assert described(sprinted) == described(walked)
    negative = [step.step for step in sprinted if float(step.loss or 0.0) < 0]
    assert negative == [42, 45, 48, 51, 54, 57]
    assert num_sprinted > LONG / 3


def test_a_loss_is_told_from_one_with_a_gradient_by_its_line_within_a_sprint() -> None:
    def train_by_turns() -> None:
        torch.manual_seed(1)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            loss = error_of(model, inputs, targets)
            if number == 45:
                loss.backward(torch.tensor(2.0))
            else:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    sprinted, walked, num_sprinted = record_both_ways(train_by_turns)
    assert described(sprinted) == described(walked)
    assert [step.step for step in sprinted if step.backward_site != sprinted[0].backward_site] == [45]
    assert num_sprinted > LONG / 3


def test_what_the_process_holds_is_read_together_with_the_memory_of_a_sprinted_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MIN_INTERVAL_NS", 0)
    read_memory_of_every_step(monkeypatch)
    kept: list[bytearray] = []

    def train_and_keep() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, targets in make_loader(LONG):
            error_of(model, inputs, targets).backward()
            kept.append(bytearray(os.urandom(4 * MIB)))
            optimizer.step()

    recorded = record_here(tmp_path, train_and_keep)
    read = [step for step in recorded.steps[memory.NUM_FULL_STEPS :] if step.memory]
    assert len(read) >= 3
    is_as_expected = [
        after.rss_bytes - before.rss_bytes == pytest.approx((after.step - before.step) * 4 * MIB, rel=0.1)
        for before, after in itertools.pairwise(read)
    ]
    # Now and then the process gives back what an earlier test had.
    assert sum(is_as_expected) >= 0.8 * len(is_as_expected)


@pytest.mark.parametrize(
    ("spent_us", "step_ms", "most_of_a_step"), [(1500, 1, 0.001), (60, 1, 0.002), (9000, 30, 0.001)]
)
def test_memory_that_takes_long_to_read_is_read_all_the_same_but_more_seldom(
    spent_us: int, step_ms: int, most_of_a_step: float
) -> None:
    watch = NoStopwatch()
    readings = EndReadings(watch)
    readings.begin(1000, 0)
    readings.note(1010, 10 * step_ms * 1_000_000, spent_us * 1000)
    num_steps = watch.memory_due - 1010
    assert spent_us / num_steps <= most_of_a_step * step_ms * 1000
    assert num_steps <= 10 * spent_us / (most_of_a_step * step_ms * 1000)


def test_one_reading_that_was_interrupted_is_not_the_last() -> None:
    watch = NoStopwatch()
    readings = EndReadings(watch)
    readings.begin(1000, 0)
    readings.note(1010, 10_000_000, 5_000_000_000)
    assert watch.memory_due <= 1010 + MAX_COSTLY_STRIDE


def test_a_heap_that_is_slow_to_read_is_read_within_a_sprint_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_memory_of_every_step(monkeypatch)
    monkeypatch.setattr(Steps, "reads_end", property(lambda _: False, lambda *_: None), raising=False)
    recorded = record_here(tmp_path, train_long)
    assert any(step.memory for step in recorded.steps[memory.NUM_WELL_READ_STEPS // 2 :])


def test_the_stage_of_an_error_within_a_sprint_is_known(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.start()
    try:
        model = make_model()
        train(model, make_loader(LONG), torch.optim.SGD(model.parameters(), lr=0.01))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:  # noqa: PT012
            for number, (inputs, targets) in enumerate(make_loader(LONG)):
                error_of(model, inputs[:, :2] if number == 40 else inputs, targets).backward()
                optimizer.step()
        assert session.loop.stage_of(raised.value) == "forward"
    finally:
        session.end()
    assert len(read_steps(tmp_path / "rank0")[0]) == LONG + 40


def test_without_a_compiler_every_step_is_walked_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stopwatches, "HAS_STOPWATCH", False)
    monkeypatch.setattr(sprint, "HAS_STOPWATCH", False)
    recorded = record_here(tmp_path, train_long)
    assert [step.step for step in recorded.steps] == list(range(LONG))
    assert recorded.events(CollectorStopped) == []
    assert not (recorded.rank / PENDING_FILE).exists()


def test_a_process_forked_within_a_sprint_writes_nothing(tmp_path: Path) -> None:
    num_known: list[int] = []

    def train_and_fork() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (inputs, targets) in enumerate(make_loader(LONG)):
            error_of(model, inputs, targets).backward()
            if number == 40:
                num_known.append(len(read_steps(tmp_path / "rank0")[0]))
                child = os.fork()
                if not child:
                    optimizer.step()
                    os._exit(0)
                os.waitpid(child, 0)
                num_known.append(len(read_steps(tmp_path / "rank0")[0]))
            optimizer.step()

    recorded = record_here(tmp_path, train_and_fork)
    assert num_known == [40, 40]
    assert [step.step for step in recorded.steps] == list(range(LONG))


KILLED = """
import os, signal, torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({kill_at} + 1):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kill_at", range(60, 60 + MAX_PENDING + 24, 23))
def test_what_a_killed_process_had_not_written_is_read_from_the_pending_steps(kill_at: int, begin: Begin) -> None:
    child = begin(KILLED.format(kill_at=kill_at))
    assert child.wait() == -signal.SIGKILL
    steps, num_torn = read_steps(child.folder / "rank0")
    assert [step.step for step in steps] == list(range(kill_at))
    assert num_torn == 0
    assert all(stages(step) == ["forward", "backward", "optimizer"] for step in steps)


def test_pending_steps_are_gone_once_everything_is_written(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, train_long)
    assert not (recorded.rank / PENDING_FILE).exists()


@settings(max_examples=200)
@given(st.binary(min_size=40, max_size=40), st.integers(-1, MAX_PENDING + 1), st.integers(-1, 30))
def test_a_spoilt_pending_file_never_raises(head: bytes, count: int, num_codes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = struct.pack("<qq", count, num_codes) + head[16:] + bytes(FILE_BYTES - 40)
        (Path(folder) / PENDING_FILE).write_bytes(content)
        pending, stretches = read_pending(Path(folder))
        assert len(pending) in (0, count)
        assert len(stretches) <= 12


def test_a_first_step_with_calls_that_no_sprint_allows_does_no_harm() -> None:
    def train_after_evaluation() -> None:
        torch.manual_seed(1)
        model, loader = make_model(), make_loader(LONG)
        with torch.no_grad():
            for inputs, targets in make_loader(3):
                error_of(model, inputs, targets)
        model.eval()
        train(model, make_loader(2), torch.optim.SGD(model.parameters(), lr=0.01))
        model.train()
        train(model, loader, torch.optim.SGD(model.parameters(), lr=0.01))

    sprinted, walked, num_sprinted = record_both_ways(train_after_evaluation)
    assert described(sprinted) == described(walked)
    assert num_sprinted > LONG / 3


def test_a_loop_with_a_scaler_that_is_off_and_clipping_sprints_too() -> None:
    def train_scaled() -> None:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for inputs, targets in make_loader(LONG):
            scaler.scale(error_of(model, inputs, targets)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    sprinted, walked, num_sprinted = record_both_ways(train_scaled)
    assert described(sprinted) == described(walked)
    assert [step.gradient_norm for step in sprinted] == pytest.approx([step.gradient_norm for step in walked])
    assert all(step.gradient_norm is not None for step in sprinted), "the program computed it anyway"
    assert num_sprinted > LONG / 3


def test_a_pending_file_of_another_size_is_left_alone(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, lambda: train(make_model_once, make_loader(5), optimizer_once))
    (recorded.rank / PENDING_FILE).write_bytes(os.urandom(100))
    assert len(read_steps(recorded.rank)[0]) == 5
    assert (recorded.rank / STEPS_FILE).exists()


make_model_once = make_model()
optimizer_once = torch.optim.SGD(make_model_once.parameters(), lr=0.01)


def test_two_loaders_that_take_turns_are_told_apart(tmp_path: Path) -> None:
    def train_by_turns() -> None:
        model, loaders = make_model(), [make_loader(LONG), make_loader(LONG)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [iter(loader) for loader in loaders]
        for number in range(LONG):
            inputs, targets = next(batches[number % 2])
            optimizer.zero_grad()
            error_of(model, inputs, targets).backward()
            optimizer.step()

    loaders = [step.loader for step in record_here(tmp_path, train_by_turns).steps]
    assert len(set(loaders)) == 2
    assert loaders == [loaders[0], loaders[1]] * (LONG // 2)
