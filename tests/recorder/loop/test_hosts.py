"""Modules that train themselves within their own call: the steps in there are seen."""

from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from tests.recorder.recording import PLAIN, UPDATE, record_here, stages
from tests.recorder.training import BATCH, error_of, make_loader

NUM_STEPS = 60

Batch = list[torch.Tensor]


class Trainer(torch.nn.Module):
    """Holds the model, and runs the whole loop, or one step of it, in its own `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def forward(self, num_steps: int, is_fed: bool) -> None:
        loader = make_loader(num_steps)
        for batch in loader if is_fed else list(loader):
            self.step(batch)

    def step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        error = error_of(self.model, *batch)
        error.backward()
        self.optimizer.step()
        return error.detach()


class Stepping(Trainer):
    """Does so for one batch, as a framework's wrapper around a step that the user optimises by hand."""

    def forward(self, batch: Batch) -> torch.Tensor:  # type: ignore[override]
        return self.step(batch)


@pytest.mark.parametrize("num_calls", [1, 3])
@pytest.mark.parametrize("is_fed", [True, False], ids=["fed by a loader", "fed by a list"])
def test_a_trainer_that_is_a_module_is_no_forward_pass(is_fed: bool, num_calls: int, tmp_path: Path) -> None:
    def train() -> None:
        trainer = Trainer()
        for _ in range(num_calls):
            trainer(NUM_STEPS // num_calls, is_fed)

    recorded = record_here(tmp_path, train)
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == NUM_STEPS
    assert stages(recorded.steps[0]) == ["optimizer"], "which shows it"
    expected = PLAIN if is_fed else UPDATE
    starts = {NUM_STEPS // num_calls * call for call in range(1, num_calls)} if is_fed else set()
    for number, step in enumerate(recorded.steps[1:], 1):
        assert stages(step) == (["data", *expected] if number in starts else expected)
        assert step.samples == (BATCH if is_fed else 0)


def test_a_module_that_makes_one_step_in_each_call_is_no_forward_pass(tmp_path: Path) -> None:
    def train() -> None:
        trainer = Stepping()
        for batch in make_loader(NUM_STEPS):
            trainer(batch)

    steps = record_here(tmp_path, train).steps
    assert [stages(step) for step in steps[1:]] == [PLAIN] * (NUM_STEPS - 1)
    assert [step.samples for step in steps] == [BATCH] * NUM_STEPS
    assert None not in [step.loss for step in steps[1:]]


def test_a_model_that_fits_something_else_on_its_way_is_in_its_forward_pass(tmp_path: Path) -> None:
    class Adapting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slow = torch.nn.Parameter(torch.ones(3, 1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            fast = torch.ones(3, 1, requires_grad=True)
            optimizer = torch.optim.SGD([fast], lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                (inputs @ fast).square().mean().backward()
                optimizer.step()
            return inputs @ (self.slow + fast.detach())

    def train() -> None:
        model = Adapting()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, _ in make_loader(NUM_STEPS):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

    steps = record_here(tmp_path, train).steps
    assert [stages(step) for step in steps[1:]] == [PLAIN] * (NUM_STEPS - 1)
