"""needless_retain_graph: fires where no kept graph was run again before it went, is silent where one was or may be."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.steps import StageSpan
from efprof.audits.needless_retain_graph import needless_retain_graph
from efprof.facts.run import Run
from efprof.model import CodeEdit, Narrative, NotRecorded, Numbers, ThinEvidence
from efprof.units import MIB
from tests.builders import GPU, make_steps, write_run
from tests.facts.retained_backward_runs import (
    BACKWARD,
    BLOCK,
    CALL,
    NUM_STEPS,
    TRAIN,
    Window,
    calls,
    kept_into_next_step,
    released_at_its_end,
    run_of,
)

CREATE = TRAIN.replace("retain_graph=True", "create_graph=True")


def needless(folder: Path, text: str = TRAIN, **seen: Any) -> Run:
    return run_of(folder, calls(**seen), text=text, allocations=kept_into_next_step())


def test_blames_the_call_that_keeps_the_graph_and_drops_its_argument(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(needless(tmp_path)).findings
    assert str(finding.blame) == "train.py:6"
    assert finding.fix.applicability == "safe"
    assert finding.fix.changes == (
        CodeEdit(file="train.py", line=6, old=f"        {CALL}", new="        loss.backward()"),
    )


def test_predicts_by_replay_what_the_peak_falls_by(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(needless(tmp_path)).findings
    # As it ran: two graphs of 30 MiB and two outputs of 10, when the second output is made. Without: one graph less
    # there, and at least one gradient more than what has gone by then, in backward.
    assert finding.gain.basis == "replay"
    assert finding.gain.peak_bytes == pytest.approx((80 - 50) * MIB, rel=1e-6)
    assert "keep 30.0 MiB into the next step's forward pass" in finding.message
    assert finding.severity == "medium"


def test_what_a_function_lets_go_of_at_its_end_does_not_reach_the_next_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, calls(num_released_later=0), allocations=released_at_its_end())
    (finding,) = needless_retain_graph(run).findings
    assert "keep 30.0 MiB past its end" in finding.message


def test_a_call_over_several_lines_is_found(tmp_path: Path) -> None:
    text = TRAIN.replace(CALL, "loss.backward(\n            retain_graph=True,\n        )")
    (finding,) = needless_retain_graph(needless(tmp_path, text)).findings
    assert str(finding.blame) == "train.py:6"
    assert finding.fix.changes


def test_where_the_text_does_not_say_it_plainly_a_person_must_change_it(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(needless(tmp_path, TRAIN.replace("=True", "=is_shared"))).findings
    assert (finding.fix.applicability, finding.fix.changes) == ("manual", ())


@pytest.mark.parametrize(
    "seen",
    [
        {"num_run_again": 1},
        {"num_calls": NUM_STEPS + 1},
        {"num_released": 17},
        {"num_watched": 10, "num_released": 7},
    ],
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


def test_a_small_graph_is_not_worth_a_finding(tmp_path: Path) -> None:
    small = run_of(tmp_path / "a", calls(kept_bytes=MIB // 10), allocations=kept_into_next_step(MIB // 40))
    without_window = run_of(tmp_path / "b", calls(kept_bytes=MIB // 10))
    assert needless_retain_graph(small).findings == needless_retain_graph(without_window).findings == ()


def test_a_graph_beside_much_larger_memory_is_not_worth_a_finding(tmp_path: Path) -> None:
    window = Window()
    window.allocate(5, 0.5, 400, 2000 * MIB)
    run = run_of(tmp_path, calls(), allocations=[*window.allocations, *kept_into_next_step()])
    assert needless_retain_graph(run).findings == ()


def test_gradients_that_hold_a_graph_for_nothing_are_found(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(needless(tmp_path, CREATE, num_created=NUM_STEPS)).findings
    assert finding.message.startswith("`create_graph=True` makes this backward keep")
    assert finding.fix.applicability == "review"
    paragraphs = next(part for part in finding.evidence if isinstance(part, Narrative)).paragraphs
    assert any("torch.autograd.grad(..., create_graph=True) returns" in text for text in paragraphs)


def test_each_line_that_keeps_a_graph_for_nothing_is_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, calls(), calls(site="train.py:4:train"), calls(site="train.py:5:train", num_run_again=9))
    assert [str(finding.blame) for finding in needless_retain_graph(run).findings] == ["train.py:6", "train.py:4"]


def test_without_allocations_it_claims_no_gain_and_gives_a_bound(tmp_path: Path) -> None:
    run = run_of(tmp_path, calls(), devices=[GPU], memory_source="CUDA caching allocator")
    (finding,) = needless_retain_graph(run).findings
    assert finding.gain.peak_bytes is None
    assert finding.severity == "low"
    numbers = next(part for part in finding.evidence if isinstance(part, Numbers)).numbers
    assert [(number.label, number.value) for number in numbers] == [("held by a graph, the most it can be", 3 * BLOCK)]


def test_a_run_from_before_calls_were_watched_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="backward_calls"):
        needless_retain_graph(run_of(tmp_path))


def test_graphs_that_are_too_large_to_be_watched_are_thin_evidence(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match=r"train\.py:6 keeps the graph"):
        needless_retain_graph(run_of(tmp_path, calls(num_watched=0, num_released=0)))


def test_a_run_without_the_argument_passes(tmp_path: Path) -> None:
    run = run_of(tmp_path, calls(num_retained=0, num_watched=0, num_released=0))
    assert needless_retain_graph(run).findings == ()


def test_a_run_without_steps_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        needless_retain_graph(write_run(tmp_path))
