"""untrained_parameters: fires on the line that builds the optimizer, and leads; silent where all is trained."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import ParametersSeen, UntrainedParameters
from efprof.audits.untrained_parameters import untrained_parameters
from efprof.commands.report import analyse
from efprof.facts.run.run import Run, open_run
from efprof.model import NotRecorded
from efprof.report.verdict import rank_findings
from tests.recorder.numbers import test_untrained_parameters as programs
from tests.recorder.recording import line_of, record_here
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = "def train(model):\n    optimizer = Adam(model.parameters())\n    loss(model).backward()\n"


def group(why: Any) -> UntrainedParameters:
    return UntrainedParameters(
        why=why, names=["Linear.weight [64, 64] (2 times)"], num_parameters=2, num_elements=8192, optimizer="Adam",
        site="train.py:2:train", gradient_bytes=32 * 1024,
    )  # fmt: skip


def run_of(folder: Path, *groups: UntrainedParameters) -> Run:
    event = ParametersSeen(at_ns=START_NS, step=12, num_parameters=4, num_elements=10_000, untrained=[*groups])
    return write_run(folder / "run", steps=make_steps(40), events=[event], sources={"train.py": TRAIN})


def test_in_a_recorded_program_it_blames_the_line_that_builds_the_optimizer(tmp_path: Path) -> None:
    recorded = record_here(tmp_path / "run", programs.layers_in_a_list)
    (finding,) = untrained_parameters(open_run(recorded.folder)).findings
    assert finding.blame.line == line_of(Path(programs.__file__), "built")
    assert finding.message.startswith("4 parameters with 24 of 65 elements get gradients, and no optimizer has them")


def test_it_names_the_parameters_and_leads(tmp_path: Path) -> None:
    (finding,) = untrained_parameters(run_of(tmp_path, group("not_optimized"))).findings
    assert (str(finding.blame), finding.severity) == ("train.py:2", "medium")
    assert "Linear.weight [64, 64] (2 times)" in finding.why
    assert "nn.ModuleList" in finding.fix.summary
    assert len(finding.message.split()) <= 25
    assert rank_findings(analyse(tmp_path / "run"))[0].audit_id == "untrained_parameters"


def test_a_frozen_model_that_gets_gradients_and_a_head_without_any_are_of_low_severity(tmp_path: Path) -> None:
    run = run_of(tmp_path, group("helper"), group("no_gradient"))
    helper, head = untrained_parameters(run).findings
    assert (helper.severity, head.severity) == ("low", "low")
    assert helper.fix.summary.startswith("Call `requires_grad_(False)` on that model: it saves 32.0 KiB")
    assert head.message.startswith("2 parameters of Adam (8,192 elements) had no gradient")


def test_an_optimizer_of_layers_that_were_replaced_is_to_be_built_later(tmp_path: Path) -> None:
    (finding,) = untrained_parameters(run_of(tmp_path, group("replaced"))).findings
    assert finding.severity == "medium"
    assert finding.message.endswith("are of layers that no model has: what took their place is not trained.")
    assert finding.fix.summary == "Build `Adam` after the layers are replaced."


def test_a_run_in_which_all_is_trained_passes(tmp_path: Path) -> None:
    examination = untrained_parameters(run_of(tmp_path))
    assert (examination.findings, examination.looked_at) == ((), "4 parameters that had gradients")


def test_a_run_in_which_no_two_steps_were_looked_at_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="in two steps"):
        untrained_parameters(write_run(tmp_path / "run", steps=make_steps(40)))
