"""recreated_optimizer: fires on the line that builds an optimizer again, and leads; silent where no state is lost."""

from pathlib import Path

import pytest

from efprof.artifacts.events import OptimizerBuilt
from efprof.audits.recreated_optimizer import recreated_optimizer
from efprof.commands.report import analyse
from efprof.facts.run.run import Run
from efprof.model import NotRecorded
from efprof.report.verdict import rank_findings
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model):
    for epoch in range(10):
        optimizer = Adam(model.parameters())
        train_epoch(model, optimizer)
"""
SITE = "train.py:3:train"


def built(number: int, num_lost: int = 6, site: str | None = SITE) -> OptimizerBuilt:
    return OptimizerBuilt(
        at_ns=START_NS,
        step=10 * number,
        number=number,
        site=site,
        optimizer="Adam",
        num_parameters=6,
        num_lost=num_lost,
    )


def run_of(folder: Path, *events: OptimizerBuilt) -> Run:
    return write_run(folder / "run", steps=make_steps(40), events=events, sources={"train.py": TRAIN})


def test_it_blames_the_line_that_builds_it_says_how_often_and_leads(tmp_path: Path) -> None:
    run = run_of(tmp_path, built(0, num_lost=0), built(1), built(2), built(3))
    (finding,) = recreated_optimizer(run).findings
    assert (str(finding.blame), finding.severity) == ("train.py:3", "high")
    assert finding.message.startswith("Adam was built again 3 times at train.py:3; ")
    assert len(finding.message.split()) <= 25
    assert finding.fix.summary.startswith("Build `Adam(...)` once")
    assert rank_findings(analyse(tmp_path / "run"))[0].audit_id == "recreated_optimizer"


@pytest.mark.parametrize(
    "events",
    [[built(0, num_lost=0), built(1, num_lost=0)], [built(0, num_lost=0), built(1), built(1, num_lost=0)]],
    ids=["nothing lost", "the state was loaded later"],
)
def test_it_is_silent_where_no_state_is_lost(events: list[OptimizerBuilt], tmp_path: Path) -> None:
    examination = recreated_optimizer(run_of(tmp_path, *events))
    assert (examination.findings, examination.looked_at) == ((), "2 optimizers")


def test_a_run_that_does_not_tell_where_optimizers_were_built_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"events\.jsonl"):
        recreated_optimizer(run_of(tmp_path))
