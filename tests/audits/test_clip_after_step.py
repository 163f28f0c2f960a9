"""clip_after_step: fires on the line that clips used gradients, and leads; is silent where any call was in time."""

from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.events import GradientClips
from efprof.audits.clip_after_step import clip_after_step
from efprof.commands.report import analyse
from efprof.facts.run.run import Run
from efprof.model import NotRecorded
from efprof.report.verdict import rank_findings
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model, optimizer):
    for batch in loader:
        model(batch).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)  # too late
"""


def clips(num_calls: int, num_late: int) -> GradientClips:
    return GradientClips(
        at_ns=START_NS,
        step=5,
        site="train.py:5:train",
        num_calls=num_calls,
        num_late=num_late,
        step_site="train.py:4:train",
    )


def run_of(folder: Path, *events: GradientClips) -> Run:
    return write_run(folder / "run", steps=make_steps(40), events=events, sources={"train.py": TRAIN})


def test_it_blames_the_line_that_clips_says_where_it_belongs_and_leads(tmp_path: Path) -> None:
    (finding,) = clip_after_step(run_of(tmp_path, clips(1, 1), clips(12, 12))).findings
    assert (str(finding.blame), finding.severity) == ("train.py:5", "high")
    assert finding.message.startswith("All 12 calls seen at train.py:5 clip gradients")
    assert len(finding.message.split()) <= 25
    moved = "Move `clip_grad_norm_(model.parameters(), 1.0)` up, between `backward()` and train.py:4."
    assert finding.fix.summary == moved
    assert rank_findings(analyse(tmp_path / "run"))[0].audit_id == "clip_after_step"


@pytest.mark.parametrize("seen", [(12, 0), (12, 11), (1, 1)], ids=["in time", "once in time", "seen once"])
def test_it_is_silent_unless_every_call_was_late(seen: tuple[int, int], tmp_path: Path) -> None:
    assert clip_after_step(run_of(tmp_path, clips(*seen))).findings == ()


@pytest.mark.parametrize("events", [[], [clips(0, 0)]], ids=["none", "none that was compared"])
def test_a_run_in_which_no_call_was_compared_is_not_judged(events: list[GradientClips], tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="clip_grad_norm_"):
        clip_after_step(run_of(tmp_path, *events))


def test_a_clip_that_never_finds_a_gradient_is_to_move_down(tmp_path: Path) -> None:
    event = msgspec.structs.replace(clips(12, 0), num_empty=12)
    (finding,) = clip_after_step(run_of(tmp_path, event)).findings
    assert finding.message == "All 12 calls seen at train.py:5 find no gradient to clip."
    assert finding.fix.summary.startswith("Move `clip_grad_norm_(model.parameters(), 1.0)` down, between `backward()`")
