"""needless_retain_graph: fires where no kept graph was run again before it went, is silent where one was or may be."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import BackwardCalls
from efprof.artifacts.steps import StageSpan, StepRecord
from efprof.audits.needless_retain_graph import needless_retain_graph
from efprof.facts.run.run import Run
from efprof.model import CodeEdit, NotRecorded, ThinEvidence
from efprof.units import MIB
from tests.support.builders import START_NS, make_steps, write_run
from tests.support.rating import severity_in

CALL = "loss.backward(retain_graph=True)"
TRAIN = f"""\
def train(model, optimizer):
    for batch in loader:
        output = model(batch)
        loss = output.mean()
        optimizer.zero_grad()
        {CALL}
        optimizer.step()
"""
CREATE = TRAIN.replace("retain_graph=True", "create_graph=True")
BACKWARD = "train.py:6:train"
NUM_STEPS = 40
KEPT = 30 * MIB


def calls(**fields: Any) -> BackwardCalls:
    """All of them keep a graph, and none is run again."""
    defaults: dict[str, Any] = {
        "at_ns": START_NS, "step": NUM_STEPS, "site": BACKWARD, "num_calls": NUM_STEPS, "num_retained": NUM_STEPS,
        "num_watched": 20, "last_watched_step": 19, "num_released": 20, "num_released_later": 19, "kept_bytes": KEPT,
    }  # fmt: skip
    return BackwardCalls(**(defaults | fields))


def run_of(
    folder: Path, *events: BackwardCalls, text: str = TRAIN, steps: list[StepRecord] | None = None, peak: int = 80 * MIB
) -> Run:
    """The run in which these calls were seen."""
    if steps is None:
        steps = make_steps(NUM_STEPS, backward_site=BACKWARD, allocated_bytes=[peak // 2, peak, peak])
    return write_run(folder, steps=steps, sources={"train.py": text}, events=events)


def needless(folder: Path, text: str = TRAIN, **seen: Any) -> Run:
    return run_of(folder, calls(**seen), text=text)


def test_blames_the_call_that_keeps_the_graph_and_predicts_what_it_was_measured_to_hold(tmp_path: Path) -> None:
    run = needless(tmp_path)
    (finding,) = needless_retain_graph(run).findings
    assert str(finding.blame) == "train.py:6"
    assert finding.fix.applicability == "safe"
    assert finding.fix.changes == (
        CodeEdit(file="train.py", line=6, old=f"        {CALL}", new="        loss.backward()"),
    )
    assert finding.gain.basis == "measured bound"
    assert (finding.gain.peak_bytes, finding.gain.peak_bytes_interval) == (KEPT, (0, KEPT))
    assert finding.message.startswith("`backward(retain_graph=True)` keeps 30.0 MiB of graph ")
    assert "into the next step's forward pass" in finding.message
    assert finding.why == "No later backward goes through that graph."
    assert severity_in(run, finding) == "medium", "37 % of the peak, but perhaps nothing"


def test_of_what_a_function_lets_go_of_at_its_end_no_gain_is_claimed(tmp_path: Path) -> None:
    run = needless(tmp_path, num_released_later=0)
    (finding,) = needless_retain_graph(run).findings
    assert "past its end" in finding.message
    assert (finding.gain.peak_bytes, severity_in(run, finding)) == (None, "low")


@pytest.mark.parametrize(
    "seen",
    [{"num_run_again": 1}, {"num_calls": NUM_STEPS + 1}, {"num_released": 17}, {"num_watched": 10, "num_released": 7}],
    ids=["run again", "not kept every time", "held", "held of few"],
)
def test_what_is_needed_or_may_be_is_silent(tmp_path: Path, seen: dict[str, int]) -> None:
    assert needless_retain_graph(needless(tmp_path, **seen)).findings == ()


def test_a_rare_step_with_one_more_backward_may_need_it(tmp_path: Path) -> None:
    steps = make_steps(NUM_STEPS, backward_site=BACKWARD)
    steps[24].spans = [*steps[24].spans, StageSpan("backward", 14000.0, 14001.0)]
    seen, unseen = (run_of(tmp_path / str(last), calls(last_watched_step=last), steps=steps) for last in (30, 19))
    assert len(needless_retain_graph(seen).findings) == 1
    assert needless_retain_graph(unseen).findings == ()


def test_gradients_that_hold_a_graph_for_nothing_are_found(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(needless(tmp_path, CREATE, num_created=NUM_STEPS)).findings
    assert finding.message.startswith("`backward(create_graph=True)` keeps ")
    assert finding.fix.applicability == "review"


def test_what_was_not_watched_is_missing_or_thin_evidence_and_a_run_without_the_argument_passes(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="backward_calls"):
        needless_retain_graph(run_of(tmp_path))
    with pytest.raises(ThinEvidence, match=r"train\.py:6 keeps the graph"):
        needless_retain_graph(run_of(tmp_path / "second", calls(num_watched=0, num_released=0)))
    run = run_of(tmp_path / "third", calls(num_retained=0, num_watched=0, num_released=0))
    assert needless_retain_graph(run).findings == ()
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        needless_retain_graph(write_run(tmp_path / "fourth"))
