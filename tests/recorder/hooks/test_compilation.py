"""What `torch.compile` makes of a program, with and without the recorder; and its steps."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, Compilation
from efprof.artifacts.steps import StepRecord
from tests.recorder.programs import compiled_programs
from tests.recorder.programs.compiled_programs import NUM_STEPS, PROGRAMS
from tests.recorder.recording import (
    PLAIN,
    UPDATE,
    Recorded,
    record_command,
    running_session,
    stages,
)
from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, str(Path(compiled_programs.__file__)))


@dataclass(frozen=True, kw_only=True)
class Both:
    """What the programs said without the recorder and with it."""

    bare: dict[str, Any]
    recorded: dict[str, Any]
    recording: Recorded


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Recorded with a window at the end of every program: what comes before it is in none."""
    home = tmp_path_factory.mktemp("compiled") / "efprof"
    windows = ",".join(f"{end - 2}:{end}" for end in BOUNDS[1:])
    with ThreadPoolExecutor() as pool:
        bare = pool.submit(run_bare)
        options = ["--trace-steps", windows, "--no-holders"]
        recording = record_command(home, COMMAND, options=options, working_folder=ROOT)
    return Both(bare=bare.result(), recorded=said(recording.output), recording=recording)


def run_bare(command: Sequence[str] = COMMAND, **variables: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_WAIT_S, check=True, env=environment)
    return said(done.stdout)


def said(output: str) -> dict[str, Any]:
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


NAMES = [program.__name__ for program in PROGRAMS]

BOUNDS = list(accumulate((2 * NUM_STEPS if name == "trained_before" else NUM_STEPS for name in NAMES), initial=0))
"""The number of the step that each program begins with, and of all steps."""


@pytest.fixture(scope="module")
def steps(both: Both) -> dict[str, list[StepRecord]]:
    return {name: both.recording.steps[start:end] for name, (start, end) in zip(NAMES, pairwise(BOUNDS), strict=True)}


every_program = pytest.mark.parametrize("name", NAMES)


@every_program
def test_nothing_is_compiled_otherwise_than_without_the_recorder(name: str, both: Both) -> None:
    assert both.recorded[name]["compiled"] == both.bare[name]["compiled"]
    assert both.bare[name]["compiled"]["stats"]["unique_graphs"] > 0


@every_program
def test_the_losses_are_those_without_the_recorder(name: str, both: Both) -> None:
    assert both.recorded[name]["losses"] == both.bare[name]["losses"]


@every_program
def test_steps_and_stages_are_seen(name: str, steps: dict[str, list[StepRecord]]) -> None:
    """But for the first step of a model of another class, which shows that it is another one."""
    begun = (0, NUM_STEPS)
    found = [stages(step) for number, step in enumerate(steps[name]) if number not in begun]
    expected = ["data", "backward", "optimizer"] if name == "whole_step" else PLAIN
    assert [list(dict.fromkeys(each)) for each in found] == [expected] * len(found)
    assert {step.micro_batches for step in steps[name][1:]} == {1}
    if name == "whole_model":
        assert stages(steps[name][0]) == ["data", *PLAIN], "the first model of a program, from its first step on"


def test_the_compiler_has_nothing_to_say_of_the_recorder(both: Both) -> None:
    assert "global hooks" not in both.recording.errors
    assert "efprof/recorder" not in both.recording.errors
    assert both.recording.events(CollectorStopped) == []


def test_compilations_are_noted_where_the_compiler_is_imported_after_the_recorder_has_started(both: Both) -> None:
    assert all(event.seconds > 0 for event in both.recording.events(Compilation))
    assert {event.function for event in both.recording.events(Compilation)} >= {"forward", "call", "step"}


DEFAULT_BACKEND = """
import json
import torch
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))

@torch.compile
def error(inputs, targets):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    return loss if loss.item() < 1e9 else 0 * loss  # here the graph breaks

optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(10):
    inputs = torch.randn(16, 16)
    optimizer.zero_grad()
    loss = error(inputs, inputs.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
kept = ("frames", "stats", "graph_break", "aot_autograd", "inductor")
print(json.dumps({"losses": losses, "compiled": {name: dict(counters[name]) for name in kept}}))
"""


@pytest.mark.long
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="needs a C++ compiler")
def test_the_default_backend_makes_the_same_under_the_recorder_and_within_a_window(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DEFAULT_BACKEND)
    command = [sys.executable, str(tmp_path / "train.py")]
    # The recorded one comes first, so that the C++ compiler runs under the recorder. The other one then finds what it
    # generates alike compiled already, but generates it anew: its graphs are in no cache.
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_VEC_ISA_OK": "0",  # or five programs more are compiled to see which instructions the CPU has
    }
    recording = record_command(tmp_path / "home", command, options=("--trace-steps", "5:7"), environment=caches)
    found, expected = said(recording.output), run_bare(command, **caches)
    assert found["losses"] == expected["losses"]
    assert found["compiled"] == expected["compiled"]
    compiled = expected["compiled"]
    assert (compiled["stats"]["unique_graphs"], sum(compiled["graph_break"].values())) == (1, 1), "as they are meant"
    assert recording.events(CollectorStopped) == []
    assert [step.step for step in recording.steps if (step.window or "").startswith("trace-")] == [5, 6]
    assert [stages(step) for step in recording.steps[1:]] == [UPDATE] * 9, "the first call shows what it does"


def test_a_reset_of_the_compiler_does_not_let_it_trace_the_recorder(tmp_path: Path) -> None:
    callback = importlib.import_module("torch._dynamo.callback").callback_handler
    before = list(callback.start_callbacks)
    with running_session(tmp_path):
        watching = list(callback.start_callbacks)
        torch._dynamo.reset()
        assert watching
        assert callback.start_callbacks == watching[len(before) :]
    torch._dynamo.reset()
    assert not callback.start_callbacks
