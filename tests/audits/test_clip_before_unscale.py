"""clip_before_unscale: fires on the line that clips scaled gradients, and leads; its edit unscales them above it."""

from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.events import ScaledClips
from efprof.audits.clip_before_unscale import clip_before_unscale
from efprof.commands.report import analyse
from efprof.facts.run.run import Run
from efprof.model import CodeEdit, NothingToLookAt
from efprof.report.verdict import rank_findings
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model, optimizer):
    for batch in loader:
        scaler.scale(model(batch)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # too early
        scaler.step(optimizer)
"""
CLIP = "        clip_grad_norm_(model.parameters(), 1.0)  # too early"

ACCUMULATING = """\
def train(model, optimizer):
    for number, batch in enumerate(loader):
        scaler.scale(model(batch)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        if number % 4 == 3: scaler.step(optimizer)
"""
PARENTHESES = """\
def train(model, optimizer):
    for batch in loader:
        norm = float(
            clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
"""
LOOPING = """\
def train(model, optimizer):
    for batch in loader:
        for group in groups:
            clip_grad_norm_(group, 1.0)
        scaler.step(optimizer)
"""
INDEXED = TRAIN.replace("scaler.step(optimizer)", "scaler.step(optimizers[0])")


def clips(
    num_updates: int = 12, num_scaled: int = 12, *, step: str | None = "train.py:5:train", is_varied: bool = False
) -> ScaledClips:
    return ScaledClips(
        at_ns=START_NS,
        step=5,
        site="train.py:4:train",
        step_site=step,
        num_updates=num_updates,
        num_scaled=num_scaled,
        limit=1.0,
        scale=1024.0,
        is_varied=is_varied,
    )


def run_of(folder: Path, *events: ScaledClips, text: str = TRAIN) -> Run:
    return write_run(folder / "run", steps=make_steps(40), events=events, sources={"train.py": text})


def test_it_blames_the_line_that_clips_says_at_what_and_leads(tmp_path: Path) -> None:
    (finding,) = clip_before_unscale(run_of(tmp_path, clips(3, 3), clips())).findings
    assert (str(finding.blame), finding.severity) == ("train.py:4", "high")
    assert finding.message == "In all 12 updates seen, train.py:4 clips at 0.00098, not 1.0."
    assert rank_findings(analyse(tmp_path / "run"))[0].audit_id == "clip_before_unscale"


def test_its_edit_unscales_above_that_line(tmp_path: Path) -> None:
    (finding,) = clip_before_unscale(run_of(tmp_path, clips())).findings
    new = f"        scaler.unscale_(optimizer)\n{CLIP}"
    assert finding.fix.changes == (CodeEdit(file="train.py", line=4, old=CLIP, new=new),)


def test_two_optimizers_of_one_line_are_one_finding_and_both_unscaled(tmp_path: Path) -> None:
    text = f"{TRAIN}        scaler.step(other)\n"
    run = run_of(tmp_path, clips(), clips(step="train.py:6:train"), text=text)
    (finding,) = clip_before_unscale(run).findings
    (edit,) = finding.fix.changes
    assert isinstance(edit, CodeEdit)
    assert edit.new.splitlines()[:2] == ["        scaler.unscale_(optimizer)", "        scaler.unscale_(other)"]


@pytest.mark.parametrize("text", [ACCUMULATING, LOOPING, INDEXED, PARENTHESES, ""])
def test_where_the_call_may_run_twice_or_has_no_names_the_edit_is_left_to_a_person(text: str, tmp_path: Path) -> None:
    (finding,) = clip_before_unscale(run_of(tmp_path, clips(), text=text)).findings
    assert (finding.fix.applicability, finding.fix.changes) == ("manual", ())


def test_a_step_in_another_function_is_left_to_a_person(tmp_path: Path) -> None:
    (finding,) = clip_before_unscale(run_of(tmp_path, clips(step="train.py:5:step"))).findings
    assert finding.fix.applicability == "manual"


@pytest.mark.parametrize(
    "seen",
    [clips(12, 0), clips(12, 11), clips(1, 1), clips(is_varied=True)],
    ids=["unscaled or scaled limit", "once unscaled", "seen once", "a limit that changes"],
)
def test_it_is_silent_unless_every_update_was_clipped_too_early(seen: ScaledClips, tmp_path: Path) -> None:
    assert clip_before_unscale(run_of(tmp_path, seen)).findings == ()


def test_a_run_without_a_scaler_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(NothingToLookAt, match="gradient scaler"):
        clip_before_unscale(run_of(tmp_path))


def test_a_clip_ahead_of_unscale_is_to_move_below_it(tmp_path: Path) -> None:
    late = msgspec.structs.replace(clips(step=None), unscale_site="train.py:5:train")
    (finding,) = clip_before_unscale(run_of(tmp_path, late)).findings
    assert finding.fix.summary.endswith("below train.py:5, which unscales.")
    assert finding.fix.changes == ()
    assert "divides them only at train.py:5" in finding.why
