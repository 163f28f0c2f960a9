"""The trainer under the recorder, at the size that it is meant for."""

import sys
from pathlib import Path

import pytest

from tests.recorder.recording import record_command, stages

FEW = ("training.steps=1", "data.max_pairs=48", "data.num_workers=0", "training.validation_share=0")
"""One step of all that `experiment` asks for: 5,000 flows at 50 x 50 x 20 take a CPU three seconds."""


@pytest.mark.long
def test_a_step_of_the_configuration_experiment_is_recorded_with_its_stages(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("energy-flow")
    settings = [word for setting in FEW for word in ("--set", setting)]
    command = [str(program), "train", "--config", "experiment", "--out", str(tmp_path / "out"), *settings]
    recording = record_command(tmp_path / "home", command)
    (step,) = recording.steps
    assert list(dict.fromkeys(stages(step))) == ["data", "forward", "backward", "optimizer"]
    assert step.samples == 16
    assert step.loss is not None
    assert recording.exit_code == 0
