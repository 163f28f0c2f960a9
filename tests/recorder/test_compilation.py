"""What `torch.compile` makes of a program, with and without the recorder; and its steps."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.steps import StepRecord
from tests.recorder import compiled_programs
from tests.recorder.compiled_programs import NUM_STEPS, PROGRAMS
from tests.recorder.recording import Recorded, record_command
from tests.recorder.test_loop import stages

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, str(Path(compiled_programs.__file__)))

PLAIN = ["data", "forward", "backward", "optimizer"]

STAGES = {"whole_step": ["data", "backward", "optimizer"]}
"""Of those that differ: there the forward pass is compiled together with all that comes before backward."""


@dataclass(frozen=True, kw_only=True)
class Both:
    """What the programs said without the recorder and with it."""

    bare: dict[str, Any]
    recorded: dict[str, Any]
    recording: Recorded


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    home = tmp_path_factory.mktemp("compiled") / "efprof"
    with ThreadPoolExecutor() as pool:
        bare = pool.submit(run_bare)
        recording = record_command(home, COMMAND, options=["--windows", "none"], working_folder=ROOT)
    return Both(bare=bare.result(), recorded=json.loads(recording.output.splitlines()[-1]), recording=recording)


def run_bare() -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=120, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def steps(both: Both) -> dict[str, list[StepRecord]]:
    names = [program.__name__ for program in PROGRAMS]
    counts = [2 * NUM_STEPS if name == "trained_before" else NUM_STEPS for name in names]
    ends = list(accumulate(counts, initial=0))
    return {name: both.recording.steps[start:end] for name, (start, end) in zip(names, pairwise(ends), strict=True)}


every_program = pytest.mark.parametrize("name", [program.__name__ for program in PROGRAMS])


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
    assert [list(dict.fromkeys(each)) for each in found] == [STAGES.get(name, PLAIN)] * len(found)
    assert {step.micro_batches for step in steps[name][1:]} == {1}


def test_the_first_model_of_a_program_is_seen_from_its_first_step_on(steps: dict[str, list[StepRecord]]) -> None:
    assert [stages(step) for step in steps["whole_model"]] == [["data", *PLAIN]] + [PLAIN] * (NUM_STEPS - 1)


def test_the_compiler_has_nothing_to_say_of_the_recorder(both: Both) -> None:
    assert "global hooks" not in both.recording.errors
    assert "efprof/recorder" not in both.recording.errors
    assert both.recording.events(CollectorStopped) == []
