"""Promises of the recorder as a whole, each kept by a training that is really recorded."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, StepsWithoutOptimizer, WindowClosed, WindowOpened
from efprof.artifacts.trace import trace_paths
from efprof.commands.report import analyse
from efprof.facts.overview.run_warnings import WITHOUT_OPTIMIZER
from efprof.model import EfprofError
from efprof.recorder.session.options import DEFAULT_TRACE_STEPS, parse_options
from tests.recorder.faults.programs import STOPS_WHEN_TOLD, training
from tests.recorder.recording import (
    EFPROF,
    Recorded,
    boundaries,
    environment_of,
    line_of,
    only_run,
    record_command,
    record_here,
    record_script,
    stages,
)
from tests.recorder.training import (
    BATCH,
    error_of,
    make_loader,
    make_model,
    make_training,
    make_weight,
    train_plainly,
    train_step,
    update_by_hand,
)
from tests.support.patience import FOR_EVER_S, MAX_WAIT_S, wait_until

MIB = 1024**2

HERE = Path(__file__)


def hoard_at(step: int, num_steps: int) -> None:
    """Allocate and touch 200 MiB at the end of this step, which lasts long enough for the next reading."""
    model, optimizer = make_training()
    kept = []
    for number, (inputs, targets) in enumerate(make_loader(num_steps)):
        train_step(model, optimizer, inputs, targets)
        if number == step:
            kept.append(torch.ones(200 * MIB, dtype=torch.uint8))
            time.sleep(0.03)


def test_each_step_has_the_resident_size_of_the_process(tmp_path: Path) -> None:
    sizes = [step.rss_bytes for step in record_here(tmp_path, lambda: hoard_at(10, 20)).steps]
    assert len(sizes) == 20
    assert all(size > 0 for size in sizes)
    assert sizes[-1] - sizes[8] > 150 * MIB


NO_NETWORK = """
import socket, sys

def refuse(event, arguments):
    if event == "socket.__new__" and arguments[1] != socket.AF_UNIX:
        print("no socket of the network", file=sys.stderr)
        raise PermissionError(event)

sys.addaudithook(refuse)
"""


WITHOUT_LOADER = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def without_options(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A training as `efprof record` takes it by itself, where a socket of the network is refused."""
    folder = tmp_path_factory.mktemp("without_options")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    (folder / "train.py").write_text(WITHOUT_LOADER)
    command = [sys.executable, "train.py"]
    return record_command(folder / "home", command, environment={"PYTHONPATH": str(folder / "site")})


def test_neither_efprof_nor_the_training_makes_a_socket_of_the_network(without_options: Recorded) -> None:
    assert (without_options.exit_code, len(without_options.steps)) == (0, 40)
    assert "no socket" not in without_options.errors
    assert len(without_options.our_lines) == 1


def test_backward_of_several_losses_is_one_stage(tmp_path: Path) -> None:
    def train() -> None:
        model, optimizer = make_training()
        for inputs, targets in make_loader(4):
            optimizer.zero_grad()
            outputs = model(inputs)
            torch.autograd.backward([outputs.mean(), (outputs - targets).square().mean()])  # both
            optimizer.step()

    steps = record_here(tmp_path, train).steps
    assert [stages(step)[-4:] for step in steps] == [["data", "forward", "backward", "optimizer"]] * 4
    assert [step.micro_batches for step in steps] == [1] * 4
    site = f"tests/recorder/session/test_promises.py:{line_of(HERE, 'both')}:{train.__qualname__}"
    assert {step.backward_site for step in steps} == {site}


def test_the_losses_that_backward_is_called_on_together_are_added(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        for _ in range(60):
            torch.autograd.backward([(weight * 2).sum(), (weight * 5).sum()])
            optimizer.step()

    assert [step.loss for step in record_here(tmp_path, train).steps] == [7.0] * 60


def test_updates_by_hand_divide_steps_at_the_forward_pass_and_the_report_says_so(tmp_path: Path) -> None:
    def train_by_hand() -> None:
        model = make_model()
        for _ in range(6):
            inputs = torch.randn(BATCH, 3)
            error_of(model, inputs, inputs.sum(1, keepdim=True)).backward()  # type: ignore[no-untyped-call]
            update_by_hand(model)

    recorded = record_here(tmp_path, train_by_hand)
    assert [stages(step) for step in recorded.steps] == [["forward", "backward"]] * 6
    assert [boundaries(step)[-1] for step in recorded.steps] == ["post_optimizer_step"] * 6
    assert len(recorded.events(StepsWithoutOptimizer)) == 1
    assert WITHOUT_OPTIMIZER in analyse(tmp_path).warnings


@pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")
def test_a_trace_has_the_shapes_of_what_operators_were_given(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, train_plainly, windows=((2, 3),))
    (path,) = trace_paths(recorded.rank)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    shapes = [event["args"]["Input Dims"] for event in events if event["name"] == "aten::addmm"]
    assert [[8], [BATCH, 3], [3, 8], [], []] in shapes


def test_without_options_the_default_windows_are_recorded_and_no_other(without_options: Recorded) -> None:
    """The second one waits for the budget, on a machine where the first one takes seconds."""
    (first, second), steps = DEFAULT_TRACE_STEPS[:2], without_options.steps
    windowed = [step.step for step in steps if step.window]
    assert windowed in ([*range(*first)], [*range(*first), *range(*second)])
    assert {event.why for event in without_options.events(WindowOpened)} == {"schedule"}
    assert len(trace_paths(without_options.rank)) == len(windowed) // 2


def test_windows_are_named_as_ranges_of_steps_and_triggers_by_their_names() -> None:
    assert parse_options(trace_steps="20:25,500:503").trace_steps == ((20, 25), (500, 503))
    assert parse_options(triggers="signal, slow-step").triggers == ("slow-step", "signal")
    with pytest.raises(EfprofError, match="names step 12 twice"):
        parse_options(trace_steps="10:14,12:20")


@contextmanager
def recording(home: Path, text: str, *options: str, num_printed: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A training of this text under `efprof record`, after the losses of so many steps were read from it."""
    (home.parent / "train.py").write_text(text)
    with subprocess.Popen(
        [EFPROF, "record", *options, "--", sys.executable, "train.py"],
        env=environment_of(home, {}), cwd=home.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(num_printed):
            assert process.stdout.readline()
        yield process
        process.stdout.read()  # what it has still to say would meet a closed pipe


def test_a_request_sent_to_efprof_itself_opens_a_window_in_the_training(tmp_path: Path) -> None:
    options = ("--trace-steps", "none", "--triggers", "signal")
    text = training(STOPS_WHEN_TOLD, num_steps=30_000)
    with recording(tmp_path / "home", text, *options, num_printed=10) as process:
        process.send_signal(signal.SIGUSR1)
        recorded = Recorded(folder=only_run(tmp_path / "home"))
        wait_until(lambda: recorded.events(WindowClosed))
        (tmp_path / "stop").touch()
    assert process.returncode == 0
    (opened,), (closed,) = recorded.events(WindowOpened), recorded.events(WindowClosed)
    assert opened.why == "SIGUSR1 asked for it"
    assert [step.step for step in recorded.steps if step.window] == [opened.step, opened.step + 1]
    assert all((recorded.rank / file).exists() for file in closed.files)


def test_ctrl_c_in_a_training_leaves_every_finished_step(tmp_path: Path) -> None:
    text = training(f"__import__('time').sleep({FOR_EVER_S}) if step == 80 else None", num_steps=400)
    with recording(tmp_path / "home", text, num_printed=81) as process:
        os.killpg(process.pid, signal.SIGINT)
    recorded = Recorded(folder=only_run(tmp_path / "home"))
    assert (process.returncode, recorded.run.exit_code, recorded.run.ended) == (130, 130, "interrupted")
    assert [step.step for step in recorded.steps] == list(range(81))


@pytest.fixture(scope="module")
def bare_output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The losses of a training that nobody records."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "train.py").write_text(training())
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment_of(folder, {}), capture_output=True, text=True
    )
    assert len(done.stdout.split()) == 40
    return done.stdout


@pytest.mark.parametrize("option", ["--holders", "--host-memory"])
def test_the_losses_are_the_same_to_the_bit_in_the_deep_tier(option: str, bare_output: str, tmp_path: Path) -> None:
    recorded = record_script(tmp_path / "home", training(), options=(option,))
    assert recorded.output == bare_output
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 40


def test_data_workers_that_are_forked_take_no_step_and_no_folder(tmp_path: Path) -> None:
    text = training(workers=2).replace("num_workers=2", "num_workers=2, multiprocessing_context='fork'")
    recorded = record_script(tmp_path / "home", text)
    assert (recorded.exit_code, len(recorded.output.splitlines())) == (0, 40)
    assert [step.step for step in recorded.steps] == list(range(40))
    assert sorted(path.name for path in recorded.folder.iterdir()) == ["rank0", "run.json"]


WAIT = "while not __import__('os').path.exists('go'): __import__('time').sleep(0.01)"


@pytest.mark.slow
def test_two_trainings_recorded_at_once_have_a_run_with_all_steps_each(tmp_path: Path) -> None:
    home = tmp_path / "home"
    both = []
    for name, num_steps in (("shorter", 30), ("longer", 50)):
        (tmp_path / f"{name}.py").write_text(training(WAIT, num_steps=num_steps))
        command = [EFPROF, "record", "--windows", "none", "--", sys.executable, f"{name}.py"]
        both.append(subprocess.Popen(command, env=environment_of(home, {}), cwd=tmp_path, stdout=subprocess.PIPE))
    try:
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline(), "it has begun, and waits for the other one"
    finally:
        (tmp_path / "go").touch()
    for process in both:
        process.communicate(timeout=MAX_WAIT_S)
    assert [process.returncode for process in both] == [0, 0]
    runs = [Recorded(folder=folder) for folder in (home / "runs").iterdir()]
    assert {run.run.name: len(run.steps) for run in runs} == {"shorter": 30, "longer": 50}
    assert len(runs) == 2
