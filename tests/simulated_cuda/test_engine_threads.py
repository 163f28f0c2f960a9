"""What autograd does on a device's own thread belongs to the thread that called backward: all is told as on a CPU."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from efprof.artifacts.events import CollectorStopped, OtherThreadTrained
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS
from tests.recorder.recording import (
    HARDLY_ANY_IN_FULL,
    Recorded,
    record_here,
    record_script,
    stages,
)
from tests.recorder.training import error_of, make_loader, make_model, train
from tests.simulated_cuda.cuda import SimulatedCuda

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_STEPS = 40
NUM_SEGMENTS = 6
NUM_LAYERS = 4
Train = Callable[[str], object]
Parameter = torch.nn.Parameter


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def batches(device: str) -> Any:
    return ((inputs.to(device), targets.to(device)) for inputs, targets in make_loader(NUM_STEPS))


def step_each_parameter_in_its_hook(device: str) -> None:
    model = make_model().to(device)
    optimizers = {parameter: sgd([parameter]) for parameter in model.parameters()}

    def update(parameter: Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    for batch in batches(device):
        error_of(model, *batch).backward()


def step_all_in_the_last_hook(device: str, before: Callable[[], object] = lambda: None) -> None:
    model = make_model().to(device)
    optimizer = sgd(model.parameters())

    def update(_: Parameter) -> None:
        before()
        optimizer.step()
        optimizer.zero_grad()

    next(model.parameters()).register_post_accumulate_grad_hook(update)
    for batch in batches(device):
        error_of(model, *batch).backward()


def step_in_a_hook_on_a_listed_thread(device: str) -> None:
    def be_listed() -> None:  # as a program is that logs there
        assert threading.current_thread() in threading.enumerate()

    step_all_in_the_last_hook(device, be_listed)


def step_within_the_call_of_a_trainer(device: str) -> None:
    class Trainer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model().to(device)
            self.optimizer = sgd(self.model.parameters())
            next(self.model.parameters()).register_post_accumulate_grad_hook(lambda _: self.optimizer.step())

        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
            self.optimizer.zero_grad()
            error_of(self.model, inputs, targets).backward()

    trainer = Trainer()
    for batch in batches(device):
        trainer(*batch)


class Checkpointed(torch.nn.Module):
    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.segments = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(NUM_SEGMENTS))
        self.is_reentrant = is_reentrant

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values.requires_grad_()
        for segment in self.segments:
            values = checkpoint(segment, values, use_reentrant=self.is_reentrant)
        return values.sum(1, keepdim=True)


def train_checkpointed(device: str, *, is_reentrant: bool) -> None:
    model = Checkpointed(is_reentrant=is_reentrant).to(device)
    optimizer = sgd(model.parameters())
    train(model, batches(device), optimizer)


def checkpoint_by_reentering(device: str) -> None:
    train_checkpointed(device, is_reentrant=True)


def checkpoint_without_reentering(device: str) -> None:
    train_checkpointed(device, is_reentrant=False)


class Implicit(torch.autograd.Function):
    """Finds its gradient by autograd."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values)
        return values.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (values,) = ctx.saved_tensors
        with torch.enable_grad():
            again = values.detach().requires_grad_()
            (found,) = torch.autograd.grad(again.tanh(), again, gradient)
        return found


def ask_for_gradients_within_backward(device: str) -> None:
    model = make_model().to(device)
    optimizer = sgd(model.parameters())
    for inputs, targets in batches(device):
        found = model(inputs)
        for _ in range(NUM_LAYERS):
            found = Implicit.apply(found)
        torch.nn.functional.mse_loss(found, targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulate(device: str) -> None:
    """Gradients of two reentrant passes make a step."""
    model = Checkpointed(is_reentrant=True).to(device)
    optimizer = sgd(model.parameters())
    for number, batch in enumerate(batches(device)):
        error_of(model, *batch).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def read_values_in_hooks(device: str) -> None:
    model = make_model().to(device)
    optimizer, norms = sgd(model.parameters()), list[float]()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: norms.append(gradient.norm().item()))
    train(model, batches(device), optimizer)


ONE_PASS_EACH = [
    step_each_parameter_in_its_hook, step_all_in_the_last_hook, step_in_a_hook_on_a_listed_thread,
    checkpoint_by_reentering, checkpoint_without_reentering, ask_for_gradients_within_backward, read_values_in_hooks,
]  # fmt: skip
MICRO_BATCHES: dict[Train, list[int]] = {
    **{train: [1] * NUM_STEPS for train in ONE_PASS_EACH},
    accumulate: [2] * (NUM_STEPS // 2),
    step_within_the_call_of_a_trainer: [0] + [1] * (NUM_STEPS - 1),  # it shows to be one when it steps
}


def recorded_on(device: str, folder: Path, train: Train) -> Recorded:
    """The first steps are in full, most of the others light."""
    torch.manual_seed(0)
    if device == "cpu":
        return record_here(folder, lambda: train("cpu"), overhead=HARDLY_ANY_IN_FULL)
    with SimulatedCuda(2).in_place() as cuda:
        recorded = record_here(
            folder, lambda: train(device), overhead=HARDLY_ANY_IN_FULL, memory_steps=DEFAULT_MEMORY_STEPS
        )
        assert cuda.engine.ident is not None, "backward ran on its thread"
        allowed = ["aten::_local_scalar_dense"] if train is read_values_in_hooks else []
        assert set(cuda.waits_of("efprof/recorder")) <= set(allowed)
    assert recorded.events(CollectorStopped) == []
    assert recorded.events(OtherThreadTrained) == []
    return recorded


@pytest.mark.parametrize("train", MICRO_BATCHES)
def test_what_runs_on_the_devices_thread_is_recorded_as_on_a_cpu(train: Train, tmp_path: Path) -> None:
    here = recorded_on("cpu", tmp_path / "cpu", train).steps
    there = recorded_on("cuda", tmp_path / "cuda", train).steps
    assert [(one.step, one.micro_batches, one.loss) for one in there] == [
        (one.step, one.micro_batches, one.loss) for one in here
    ]
    assert [one.micro_batches for one in there] == MICRO_BATCHES[train]
    full = [pair for pair in zip(here, there, strict=True) if pair[0].is_full and pair[1].is_full]
    assert len(full) >= 10
    for one, other in full:
        assert (stages(other), other.samples) == (stages(one), one.samples)
        assert [(read.site, read.count) for read in other.reads] == [(read.site, read.count) for read in one.reads]


def test_a_thread_that_trains_in_the_place_of_ours_has_the_devices_thread_work_for_it(
    tmp_path: Path,
) -> None:
    with SimulatedCuda().in_place() as cuda:

        def train() -> None:
            with cuda:  # it holds for one thread
                step_all_in_the_last_hook("cuda")

        def train_elsewhere() -> None:
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()

        recorded = record_here(tmp_path, train_elsewhere, overhead=HARDLY_ANY_IN_FULL)
    assert len(recorded.steps) == NUM_STEPS
    assert [one.micro_batches for one in recorded.steps[1:]] == [1] * (NUM_STEPS - 1), "the first pass began unseen"
    assert recorded.events(OtherThreadTrained) == []


DEEP = f"""
import os, threading, torch

class Deep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, weight, depth):
        ctx.weight, ctx.depth = weight, depth
        return values * 1

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            if ctx.depth:
                torch.autograd.backward(Deep.apply(torch.ones(3, requires_grad=True), ctx.weight, ctx.depth - 1).sum())
            else:
                torch.autograd.backward(ctx.weight[0].square().sum())
        return gradient, None, None

weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
seen = set()

def update(_):
    thread = threading.get_ident()
    is_listed = thread in [one.ident for one in threading.enumerate()]
    seen.add((thread == threading.main_thread().ident, is_listed, torch._C._current_graph_task_id() == -1))
    optimizer.step()
    optimizer.zero_grad()

weight.register_post_accumulate_grad_hook(update)
for _ in range({NUM_STEPS} + 1):
    Deep.apply(torch.ones(3, requires_grad=True), [weight], 80).sum().backward()
print(seen, flush=True)
os._exit(0)  # torch sometimes aborts at the end where its engine has such a thread
"""


def test_a_thread_that_the_real_engine_makes_works_for_ours(tmp_path: Path) -> None:
    """On a CPU it makes one where passes are 60 deep within each other."""
    recorded = record_script(tmp_path / "home", DEEP)
    assert recorded.output.splitlines()[-1] == "{(False, False, False)}", recorded.errors
    assert [one.micro_batches for one in recorded.steps] == [1] * NUM_STEPS
    assert recorded.events(OtherThreadTrained) == []
