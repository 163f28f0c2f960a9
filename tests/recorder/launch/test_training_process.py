"""Whole training programs, each in a process of its own: how they end, and what is left of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.run_file import read_run_file, read_sources
from tests.recorder.conftest import Begin
from tests.recorder.recording import (
    EFPROF,
    Recorded,
    environment_of,
    only_run,
    record_script,
)
from tests.support.waiting import MAX_WAIT_S

TRAINING = """
import importlib.util, sys
importlib.util.find_spec("torch")  # as libraries do that can do without it
import torch
from torch.utils.data import DataLoader, TensorDataset

def build():
    torch.manual_seed(0)
    inputs = torch.randn(200 * 8, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, num_workers={workers})
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    return model, loader, torch.optim.Adam(model.parameters(), lr=0.01)

def train(num_epochs={epochs}):
    model, loader, optimizer = build()
    losses = []
    for epoch in range(num_epochs):
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            {then}
    return losses

losses = train()
print(*(loss.hex() for loss in losses))
"""


def training(then: str = "pass", epochs: int = 1, workers: int = 0) -> str:
    return TRAINING.format(then=then, epochs=epochs, workers=workers)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A whole recording with its default windows, its data loaded by a worker."""
    return record_script(tmp_path_factory.mktemp("healthy") / "home", training(workers=1), options=())


def test_the_losses_are_the_same_to_the_bit_with_and_without_the_recorder(
    healthy: Recorded, begin_unrecorded: Begin, tmp_path: Path
) -> None:
    bare = begin_unrecorded(training(workers=1), tmp_path / "home")
    assert bare.wait() == 0, bare.errors
    assert len(bare.output.split()) == 200
    assert healthy.output == bare.output


def test_a_recording_is_whole_and_says_one_line(healthy: Recorded) -> None:
    assert (healthy.exit_code, healthy.run.ended, healthy.run.name) == (0, "finished", "train")
    assert [step.step for step in healthy.steps] == list(range(200))
    assert healthy.our_lines == [
        f"efprof: recorded {healthy.folder.name}; read it with 'efprof report'",
    ]
    assert healthy.events(CollectorStopped) == []
    assert sorted(path.name for path in healthy.folder.iterdir()) == ["rank0", "run.json"]


def test_the_training_process_adds_its_versions_and_settings(healthy: Recorded) -> None:
    assert {"python", "torch", "efprof"} <= set(healthy.run.versions)
    assert healthy.run.settings["intra-op threads"] == "1"
    assert healthy.run.memory_source


def test_the_script_is_named_as_it_lies_in_the_working_folder(healthy: Recorded) -> None:
    assert set(read_sources(healthy.rank)) == {"train.py"}
    assert {step.backward_site for step in healthy.steps} == {"train.py:21:train"}


@pytest.mark.long
def test_the_recorder_itself_lets_no_memory_grow(tmp_path: Path) -> None:
    """Not by 8 bytes a step, a pointer in a list, once the last window is over."""
    text = training(epochs=8).replace("losses.append(loss.item())", "loss.item()")
    # A slow step, as on a busy machine, would open one more window: 11 KB stay of each.
    options = ("--trace-steps", "5:7,30:32", "--triggers", "none", "--no-holders")
    recorded = record_script(tmp_path / "home", text, options=options)
    if recorded.run.memory_source != "C allocator (malloc)":
        pytest.skip("needs glibc's mallinfo2")
    allocated = [(step.step, step.memory[-1].allocated_bytes) for step in recorded.steps if step.memory]
    # The least of each stretch: what waits to be written together comes and goes, by some KB. Not before step 800: up
    # to there the lists of the last few hundred steps fill up, by another 5 KB.
    least = [min(size for step, size in allocated if start <= step < start + 100) for start in range(800, 1600, 100)]
    rises = [later > earlier for earlier, later in pairwise(least)]
    assert sum(rises) <= 5 or least[-1] - least[0] < 700 * 8 / 2, least  # now and then some KB are kept, once


@contextmanager
def running_training(home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A long training under `efprof record`, after its first step, each in full; it prints a line per step."""
    (home.parent / "train.py").write_text(training("print(step, flush=True)", epochs=100_000))
    with subprocess.Popen(
        [*EFPROF, "record", "--overhead", "100%", "--", sys.executable, "train.py"],
        env=environment_of(home, {}),
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def child_of(process: "subprocess.Popen[bytes]") -> int:
    """The recorded program; efprof has another child, a copy of itself."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    own = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    (child,) = (int(number) for number in children if Path(f"/proc/{number}/cmdline").read_bytes() != own)
    return child


def count_lines(home: Path) -> int:
    path = only_run(home) / "rank0" / "steps.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_training_goes_on_recording_when_the_parent_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_training(home) as process:
        assert process.stdout is not None
        child = child_of(process)
        process.kill()
        process.wait(timeout=MAX_WAIT_S)
        before = count_lines(home)
        for _ in range(20):
            process.stdout.readline()
        os.kill(child, signal.SIGKILL)
    assert count_lines(home) >= before + 10
    assert read_run_file(only_run(home)).ended == "running"
