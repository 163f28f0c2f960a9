"""Programs that do what few do: what the recorder makes of them is right, and they go on as without it."""

import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, NonFiniteSeen, TrainingRaised
from efprof.recorder.loop import steps
from tests.recorder.conftest import Begin
from tests.recorder.recording import Recorded, open_session, record_here, running_session, stages
from tests.recorder.training import BATCH, error_of, make_loader, make_model, make_training, train, train_step

LONG = 60


@pytest.fixture
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError("the program's own")

    before = signal.signal(signal.SIGUSR2, stop)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.usefixtures("time_limit")
def test_what_a_signals_handler_raises_within_the_recorder_reaches_the_program(tmp_path: Path) -> None:
    session = open_session(tmp_path)
    session.start()
    limits = 0

    def strike(step: object, _: object) -> None:
        if session.loop.number in (3, 5):
            signal.raise_signal(signal.SIGUSR2)

    session.subscribe(session.loop.step_ended, "test", strike)
    model, optimizer = make_training()
    batches = iter(make_loader(12))
    while True:
        try:
            train(model, batches, optimizer)
            break
        except TimeoutError:
            limits += 1
    session.end()
    assert limits == 2, "the collector goes on after the first"
    assert Recorded(folder=tmp_path).events(CollectorStopped) == []


@pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")
def test_a_profile_function_set_within_a_window_outlives_it(tmp_path: Path) -> None:
    calls = 0

    def profile(*_: object) -> None:
        nonlocal calls
        calls += 1

    def train_profiled() -> None:
        nonlocal calls
        model, optimizer = make_training()
        for number, batch in enumerate(make_loader(10)):
            if number == 3:
                sys.setprofile(profile)
            train_step(model, optimizer, *batch)
            if number == 6:
                assert sys.getprofile() is profile
                sys.setprofile(None)
        assert calls > 0

    record_here(tmp_path, train_profiled, windows=((2, 5),))


def test_optimizers_that_step_within_backward_end_its_step(tmp_path: Path) -> None:
    def train_fused(batches: int, has_loader: bool) -> None:
        model = make_model()
        optimizers = {one: torch.optim.SGD([one], lr=0.01) for one in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        loader = make_loader(batches)
        for batch in loader if has_loader else list(loader):
            error_of(model, *batch).backward()

    fed = record_here(tmp_path / "fed", lambda: train_fused(12, has_loader=True)).steps
    assert [stages(step)[-3:] for step in fed] == [["data", "forward", "backward"]] * 12
    assert [step.samples for step in fed] == [BATCH] * 12
    assert [step.memory[-1].boundary for step in fed] == ["post_optimizer_step"] * 12
    assert [step.learning_rate for step in fed] == [0.01] * 12
    unfed = record_here(tmp_path / "unfed", lambda: train_fused(12, has_loader=False)).steps
    assert [step.micro_batches for step in unfed] == [1] * 12


def _add_to_data(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.01)
    return parameters


def _replace_data(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.data = parameter.data - 0.01 * parameter.grad
    return parameters


@pytest.mark.parametrize("update", [_add_to_data, _replace_data])
def test_an_update_that_leaves_no_trace_in_the_parameters_version_is_seen(
    update: Callable[[list[torch.Tensor]], list[torch.Tensor]], tmp_path: Path
) -> None:
    def train_by_hand() -> None:
        parameters = [torch.randn(3, 1, requires_grad=True), torch.zeros(1, requires_grad=True)]
        for inputs, targets in make_loader(10):
            for parameter in parameters:
                parameter.grad = None
            (inputs @ parameters[0] + parameters[1] - targets).square().mean().backward()
            parameters = update(parameters)

    steps = record_here(tmp_path, train_by_hand).steps
    assert [(step.samples, step.micro_batches) for step in steps] == [(BATCH, 1)] * 10


def test_a_program_that_only_looks_at_gradients_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MAX_SPANS", 10)
    model = make_model()
    with running_session(tmp_path) as session:
        for batch in make_loader(30):
            error_of(model, *batch).backward()
        assert session.loop.step is not None
        assert (len(session.loop.step.spans), len(session.loop.step.memory)) == (10, 10)


def test_a_working_folder_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    torch.optim.SGD([torch.ones(1)])  # the first one imports what asks for the working folder

    def train_without_a_folder() -> None:
        home = Path.cwd()
        gone = tempfile.mkdtemp()
        os.chdir(gone)
        shutil.rmtree(gone)
        try:
            model = make_model()
            train(model, make_loader(30), torch.optim.SGD(model.parameters(), lr=0.01))
        finally:
            os.chdir(home)

    recorded = record_here(tmp_path, train_without_a_folder)
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 30


def test_a_gradient_that_is_always_zero_is_no_proof_for_the_others(tmp_path: Path) -> None:
    """The first row of the embedding, which stands for padding, is never looked up."""

    def train_with_padding() -> None:
        torch.manual_seed(0)
        embedding, head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=0.0)
        for number in range(LONG):
            out = head(embedding(torch.randint(1, 8, (16,))))
            loss = out.square().mean() + (0.0 * (out - out).sqrt().sum() if number == 50 else 0.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    recorded = record_here(tmp_path, train_with_padding)
    assert [(event.step, event.what) for event in recorded.events(NonFiniteSeen)] == [(50, "gradient")]
    assert recorded.steps[50].gradient_norm == "nan"
    (event,) = recorded.events(NonFiniteSeen)
    assert event.site is not None


@pytest.mark.parametrize("way", ["head alone", "largest", "before backward", "whole"])
def test_a_clipped_norm_is_taken_only_where_it_is_the_norm_of_all(way: str, tmp_path: Path) -> None:
    norms: list[float] = []

    def clip(model: torch.nn.Sequential) -> None:
        match way:
            case "head alone":
                torch.nn.utils.clip_grad_norm_(model[2].parameters(), 0.1)
            case "largest":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=math.inf)
            case "whole":
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))

    def train_clipped() -> None:
        torch.manual_seed(0)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for batch in make_loader(LONG):
            if way == "before backward":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.zero_grad()
            error_of(model, *batch).backward()
            clip(model)
            if way != "whole":
                gradients = [one.grad for one in model.parameters() if one.grad is not None]
                norms.append(float(torch.nn.utils.get_total_norm(gradients)))
            optimizer.step()

    steps = record_here(tmp_path, train_clipped).steps
    read = [
        (step.gradient_norm, norm) for step, norm in zip(steps, norms, strict=True) if step.gradient_norm is not None
    ]
    assert len(read) >= 20
    assert [norm for norm, _ in read] == pytest.approx([norm for _, norm in read], rel=1e-3)


def test_gradients_of_transformed_functions_and_of_one_tensor_are_understood(tmp_path: Path) -> None:
    def train_twice() -> None:
        weight = torch.ones(4, requires_grad=True)
        torch.func.grad(lambda x: (x**2).sum())(torch.ones(3))
        torch.func.vmap(torch.func.grad(lambda x: (x**2).sum()))(torch.ones(3, 2))
        for _ in range(8):
            (gradient,) = torch.autograd.grad((weight**2).sum(), weight)
            with torch.no_grad():
                weight -= 0.1 * gradient

    recorded = record_here(tmp_path, train_twice)
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) >= 7


def test_an_error_after_the_loop_is_in_no_stage_of_the_loaders_end(begin: Begin) -> None:
    text = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (batch,) in DataLoader(TensorDataset(torch.randn(40, 3)), batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
{}["missing"]
"""
    child = begin(text)
    assert child.wait() == 1
    (raised,) = Recorded(folder=child.folder).events(TrainingRaised)
    assert raised.error == "KeyError"
    assert raised.stage != "data"


TRACES = """
import torch

weight = torch.ones(3, requires_grad=True)
(weight * 2).sum().backward()  # no torch optimizer has stepped so far: who updates weights is looked for
traced = torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1))
optimizer = torch.optim.SGD(traced.parameters(), lr=0.1)
for _ in range(3):
    traced(torch.ones(4, 1)).sum().backward()
    optimizer.step()
print([node.kind() for node in traced.graph.nodes()])
"""


def test_a_module_is_traced_as_without_the_recorder(begin: Begin) -> None:
    child = begin(TRACES)
    assert child.wait() == 0, child.errors
    assert "aten::linear" in child.output
    assert "aten::clone" not in child.output, "nothing of ours is in the program's graph"
    recorded = Recorded(folder=child.folder)
    assert len(recorded.steps) == 3
    assert recorded.events(CollectorStopped) == []
