"""uncleared_gradients: fires where nothing clears an optimizer's gradients, on the pass that adds to them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from efprof.artifacts.events import GradientClearing, WindowOpened
from efprof.audits.uncleared_gradients import uncleared_gradients
from efprof.facts.run.run import Run
from efprof.model import CodeEdit, Finding, NotRecorded, Snippet
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model, optimizer, other):
    optimizer.zero_grad()
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        other.step()
"""
BACKWARD = "train.py:5:train"
STEP = "train.py:6:train"


def clearing(outcome: str = "kept", **fields: object) -> GradientClearing:
    kept = {"num_steps": 10, "backward_sites": [BACKWARD], "step_site": STEP}
    fields = {**(kept if outcome == "kept" else {"num_steps": 0}), **fields}
    defaults = {"at_ns": START_NS, "step": 10, "optimizer": "Adam", "outcome": outcome}
    return GradientClearing(**{**defaults, **fields})  # type: ignore[arg-type]


def run_of(folder: Path, *events: GradientClearing, text: str = TRAIN, **fields: object) -> Run:
    steps = make_steps(20, **{"gradient_norm": lambda step: 1.0 + step, **fields})
    return write_run(folder / "run", steps=steps, events=events, sources={"train.py": text})


def finding_of(run: Run) -> Finding:
    (finding,) = uncleared_gradients(run).findings
    return finding


def test_it_blames_the_backward_pass_clears_below_the_step_and_claims_neither_time_nor_memory(tmp_path: Path) -> None:
    finding = finding_of(run_of(tmp_path, clearing()))
    assert (str(finding.blame), finding.blame.text) == ("train.py:5", "loss.backward()")
    new = "        optimizer.step()\n        optimizer.zero_grad(set_to_none=True)"
    assert finding.fix.changes == (CodeEdit(file="train.py", line=6, old="        optimizer.step()", new=new),)
    assert (finding.category, finding.severity) == ("numbers", "high")
    told = "In 10 watched steps nothing cleared the gradients of Adam: each update used their running sum."
    assert finding.message == told
    assert finding.why.endswith(", and the norm of the gradients rises with the steps.")
    assert (finding.gain.step_ms, finding.gain.peak_bytes) == (None, None)
    assert [one.highlighted for one in finding.evidence if isinstance(one, Snippet)] == [6]


@pytest.mark.parametrize(
    ("norm", "num_steps", "severity"),
    [
        (lambda step: 1.0 + 0.1 * step, 15, "high"),  # the medians of five are 1.2 and 2.2
        (lambda step: 1.0 + 0.1 * step, 14, "medium"),  # four are too few to tell
        (lambda step: 1.0 + 0.04 * step, 15, "medium"),  # 1.08 and 1.48 are 1.4 times as much
        (lambda step: 2.0 if step % 2 else 1.0, 15, "medium"),
        (lambda step: None, 15, "medium"),
    ],
    ids=["rising", "few steps", "rising by little", "up and down", "not read"],
)
def test_only_where_the_norm_of_the_gradients_rises_is_the_harm_seen(
    norm: Callable[[int], float | None], num_steps: int, severity: str, tmp_path: Path
) -> None:
    steps = make_steps(num_steps, gradient_norm=norm)
    run = write_run(tmp_path / "run", steps=steps, events=[clearing()], sources={"train.py": TRAIN})
    finding = finding_of(run)
    assert finding.severity == severity
    assert ("the norm of the gradients rises" in finding.why) == (severity == "high")


def test_optimizers_of_one_pass_are_one_finding_and_of_their_own_passes_one_each(tmp_path: Path) -> None:
    second = clearing(optimizer="SGD", step_site="train.py:7:train")
    finding = finding_of(run_of(tmp_path, clearing(), second))
    assert "of Adam and SGD" in finding.message
    other = clearing(backward_sites=["train.py:4:train"], step_site="train.py:7:train")
    blames = [
        finding.blame.line for finding in uncleared_gradients(run_of(tmp_path / "second", clearing(), other)).findings
    ]
    assert blames == [5, 4]


def test_another_step_s_gradients_and_a_library_s_step_are_left_to_a_person(tmp_path: Path) -> None:
    fix = finding_of(run_of(tmp_path, clearing(num_earlier_backwards=1))).fix
    assert (fix.applicability, fix.changes) == ("manual", ())
    finding = finding_of(run_of(tmp_path / "second", clearing(step_site=None)))
    assert (finding.fix.applicability, finding.fix.changes) == ("manual", ())


def test_a_branch_that_never_clears_is_told_as_one_and_left_to_a_person(tmp_path: Path) -> None:
    run = run_of(tmp_path, clearing("cleared"), clearing(num_steps=8, num_cleared=9))
    finding = finding_of(run)
    assert (str(finding.blame), finding.fix.applicability) == ("train.py:5", "manual")
    told = "In 8 watched steps nothing cleared the gradients of Adam before this pass, in 9 others something did."
    assert finding.message == told
    assert uncleared_gradients(run).looked_at == "the gradients of 1 optimizer"


@pytest.mark.parametrize("others", [("cleared",), ("cleared", "cleared"), ("cleared", "changed")])
def test_it_is_silent_where_gradients_are_cleared_or_changed(tmp_path: Path, others: tuple[str, ...]) -> None:
    examination = uncleared_gradients(run_of(tmp_path, *map(clearing, others)))
    assert examination.findings == ()
    count = others.count("cleared")
    assert examination.looked_at == f"the gradients of {count} optimizer{'s' * (count > 1)}"


def test_where_nothing_or_only_of_changed_gradients_was_told_it_names_what_tells_of_them(tmp_path: Path) -> None:
    opened = WindowOpened(at_ns=START_NS, step=5, window="trace-1", why="schedule")
    run = write_run(tmp_path / "second", steps=make_steps(20), events=[opened])
    for one in (run, run_of(tmp_path, clearing("changed"))):
        with pytest.raises(NotRecorded, match=r"events\.jsonl"):
            uncleared_gradients(one)
