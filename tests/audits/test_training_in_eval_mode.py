"""training_in_eval_mode: fires on the line that calls `eval()`, and leads; is silent where the training goes back."""

from pathlib import Path

import pytest

from efprof.artifacts.events import TrainedAsEvaluated
from efprof.audits.training_in_eval_mode import training_in_eval_mode
from efprof.commands.report import analyse
from efprof.facts.run.run import Run
from efprof.model import NotRecorded
from efprof.report.verdict import rank_findings
from tests.support.builders import START_NS, make_steps, write_run

SITE = "train.py:5:train"
TRAIN = """\
def train(model, optimizer):
    for batch in loader:
        model(batch).backward()
        optimizer.step()
    model.eval()
"""


def seen(
    num_last: int, num_updates: int = 40, *, num_evaluated: int = 0, num_entries: int = 1, site: str | None = SITE
) -> TrainedAsEvaluated:
    return TrainedAsEvaluated(
        at_ns=START_NS, step=12, module="Net", kinds=["BatchNorm2d", "Dropout"], num_layers=3, site=site,
        backward_site="train.py:4:train", num_updates=num_updates, num_last=num_last,
        num_evaluated=num_evaluated or num_last, num_entries=num_entries,
    )  # fmt: skip


def run_of(folder: Path, *events: TrainedAsEvaluated) -> Run:
    return write_run(folder / "run", steps=make_steps(40), events=events, sources={"train.py": TRAIN})


def test_it_blames_the_call_of_eval_and_leads(tmp_path: Path) -> None:
    (finding,) = training_in_eval_mode(run_of(tmp_path, seen(10), seen(28))).findings
    assert (str(finding.blame), finding.severity) == ("train.py:5", "medium")
    assert finding.message.startswith("All updates seen since step 12 train Net in evaluation mode")
    assert "3 layers of BatchNorm2d, Dropout" in finding.message
    assert rank_findings(analyse(tmp_path / "run"))[0].audit_id == "training_in_eval_mode"


def test_a_training_that_is_evaluated_within_its_epochs_and_goes_back_at_their_end(tmp_path: Path) -> None:
    (finding,) = training_in_eval_mode(run_of(tmp_path, seen(0, num_evaluated=20, num_entries=3))).findings
    assert finding.message.startswith("50 % of the updates seen train Net in evaluation mode")


def test_where_nothing_called_eval_the_update_is_blamed(tmp_path: Path) -> None:
    (finding,) = training_in_eval_mode(run_of(tmp_path, seen(40, site=None))).findings
    assert str(finding.blame) == "train.py:4"
    assert finding.message.startswith("All updates seen train Net")
    assert finding.why.startswith("It never left that mode")


def test_it_is_silent_of_a_phase_and_of_a_training_that_goes_back(tmp_path: Path) -> None:
    phase, back = [seen(9)], [seen(30), seen(0, num_evaluated=30)]
    for name, events in (("phase", phase), ("back", back), ("now and then", [seen(1, 400, num_entries=9)])):
        assert training_in_eval_mode(run_of(tmp_path / name, *events)).findings == ()


def test_a_run_in_which_no_such_update_was_seen_has_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="in evaluation mode"):
        training_in_eval_mode(run_of(tmp_path))
