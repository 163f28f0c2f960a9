"""How long each stage takes, in a training whose stages sleep and look at the clock themselves.

The training times each stage twice: within what sleeps, and around the call that its loop makes. What is recorded
lies between the two, on however busy a machine.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import efprof
from efprof.artifacts.steps import StepRecord
from efprof.recorder.loop import steps as steps_module
from tests.recorder.recording import Recorded, record_here
from tests.recorder.training import train_plainly

SLEEPS_MS = {"data": 2, "forward": 6, "other": 3, "backward": 12, "optimizer": 4}

NUM_STEPS = 60
"""Three times as many as are recorded in full whatever the budget; here all of them are."""

ROUNDING_US = 0.01

Lengths = dict[str, list[float]]
"""Microseconds of each stage, one number per step."""

Around = Callable[[str], AbstractContextManager[None]]


class Clocks:
    """What the training itself says of its stages: `inner` within what sleeps, `outer` around the call."""

    def __init__(self, share: float = 1.0) -> None:
        self.inner: Lengths = defaultdict(list)
        self.outer: Lengths = defaultdict(list)
        self._share = share

    def sleep(self, stage: str) -> None:
        with _timed(self.inner[stage]):
            time.sleep(SLEEPS_MS[stage] * self._share / 1000)

    def around(self, stage: str) -> AbstractContextManager[None]:
        return _timed(self.outer[stage])


@contextmanager
def _timed(lengths: list[float]) -> Iterator[None]:
    start = time.perf_counter_ns()
    yield
    lengths.append((time.perf_counter_ns() - start) / 1000)


class SlowModel(torch.nn.Linear):
    """Sleeps in its forward pass and in its backward pass."""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__(3, 1)

        class Sleep(torch.autograd.Function):
            @staticmethod
            def forward(context: object, inputs: torch.Tensor) -> torch.Tensor:
                clocks.sleep("forward")
                return inputs.clone()

            @staticmethod
            def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
                clocks.sleep("backward")
                return gradient

        self.sleep = Sleep

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.sleep.apply(super().forward(inputs))  # type: ignore[no-untyped-call]
        return outputs


class SlowOptimizer(torch.optim.SGD):
    """Sleeps in its step, once its closure has come back."""

    def __init__(self, model: torch.nn.Module, clocks: Clocks) -> None:
        super().__init__(model.parameters(), lr=0.01)
        self.clocks = clocks

    def step(self, closure: Callable[[], object] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            closure()
        self.clocks.sleep("optimizer")
        super().step()


class SlowData(Dataset[torch.Tensor]):
    """Sleeps for each sample."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks

    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clocks.sleep("data")
        return torch.ones(3)


def train(
    clocks: Clocks, marked: Around = lambda _: nullcontext(), end_step: Callable[[], None] = lambda: None
) -> None:
    """A plain loop; `marked` goes around each stage, and `end_step` is called after each step."""
    model = SlowModel(clocks)
    optimizer = SlowOptimizer(model, clocks)
    batches = iter(DataLoader(SlowData(clocks)))
    for _ in range(NUM_STEPS):
        with clocks.around("data"), marked("data"):
            inputs = next(batches)
        with clocks.around("forward"), marked("forward"):
            loss = model(inputs).sum()
        clocks.sleep("other")
        with clocks.around("backward"), marked("backward"):
            loss.backward()
        with clocks.around("optimizer"), marked("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        end_step()


def lengths_of(steps: list[StepRecord]) -> Lengths:
    lengths: Lengths = defaultdict(list)
    for step in steps:
        taken = dict.fromkeys(SLEEPS_MS, 0.0)
        for span in step.spans:
            taken[span.stage] += span.end_us - span.start_us
        taken["other"] = step.total_us - sum(taken.values())
        for stage, length_us in taken.items():
            lengths[stage].append(length_us)
    return lengths


def wrong_lengths(recorded: Recorded, clocks: Clocks) -> list[tuple[str, int, float, float, float]]:
    """Stage, step, what lies within, what is recorded, what lies around, wherever these are not in order.

    Without the first step: its data are the start of the loader too, which the loop does not time.
    """
    steps, wrong = recorded.steps, []
    assert len(steps) == NUM_STEPS
    for stage, recorded_us in lengths_of(steps).items():
        within = clocks.inner[stage] or [0.0] * NUM_STEPS
        around = clocks.outer[stage] or [float("inf")] * NUM_STEPS
        for number, (least, found, most) in enumerate(zip(within, recorded_us, around, strict=True)):
            if number and not least - ROUNDING_US <= found <= most + ROUNDING_US:
                wrong.append((stage, number, least, found, most))
    return wrong


@pytest.mark.parametrize("share", [1.0, 0.01], ids=["steps of 30 ms", "steps of 1 ms"])
def test_stages_are_as_long_as_the_training_itself_sees_them(share: float, tmp_path: Path) -> None:
    clocks = Clocks(share)
    assert wrong_lengths(record_here(tmp_path, lambda: train(clocks)), clocks) == []


def test_stages_that_the_program_marks_are_as_long_as_it_sees_them(tmp_path: Path) -> None:
    clocks = Clocks()
    recorded = record_here(tmp_path, lambda: train(clocks, efprof.stage, efprof.step))
    assert wrong_lengths(recorded, clocks) == []


def test_a_step_is_as_long_as_all_its_stages(tmp_path: Path) -> None:
    clocks = Clocks()
    steps = record_here(tmp_path, lambda: train(clocks)).steps
    slept_us = [sum(lengths[number] for lengths in clocks.inner.values()) for number in range(NUM_STEPS)]
    assert [step.step for step in steps if step.total_us < slept_us[step.step]] == []
    whole_us = (steps[-1].started_ns - steps[0].started_ns) / 1000
    assert sum(step.total_us for step in steps[:-1]) == pytest.approx(whole_us, rel=0.01)


def test_a_core_that_is_passed_on_as_the_cpu_time_is_read_is_no_cost_of_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Linux's doing; the first step waits once and each later one twice, as the one before it ends and it begins."""
    passed_on_us = 50_000

    def read() -> int:
        time.sleep(passed_on_us / 1e6)
        return 0

    monkeypatch.setattr(time, "process_time_ns", read)
    steps = record_here(tmp_path, train_plainly).steps
    assert all(step.total_us > passed_on_us for step in steps)
    assert 0 < min(step.recorder_us for step in steps) < passed_on_us


def test_the_time_of_day_of_a_step_is_right_where_another_program_runs_between_the_two_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late_ns = iter([18_000_000, 0])
    monkeypatch.setattr(steps_module, "perf_counter_ns", lambda: 5_000)
    monkeypatch.setattr(time, "time_ns", lambda: 1_005_000 + next(late_ns))
    assert steps_module.epoch_ns(7_000) == 1_007_000
