"""needless_retain_graph: fires where no node of the kept graph runs again, is silent where one may."""

from pathlib import Path

import pytest

from efprof.audits.needless_retain_graph import needless_retain_graph
from efprof.facts.run import Run
from efprof.model import CodeEdit, Narrative, NotRecorded, Numbers, ThinEvidence
from efprof.units import MIB
from tests.builders import GPU, make_steps, write_run
from tests.facts.retained_backward_runs import (
    BACKWARD,
    CALL,
    OUTPUT,
    TRAIN,
    Recording,
    needless,
    own_nodes,
    with_backwards,
)

SECOND_CALL = "train.py:7:train"


def is_silent(run: Run) -> bool:
    return needless_retain_graph(run).findings == ()


def test_blames_the_call_that_keeps_the_graph_and_drops_its_argument(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(needless().run(tmp_path)).findings
    assert str(finding.blame) == "train.py:6"
    assert finding.fix.applicability == "safe"
    assert finding.fix.changes == (
        CodeEdit(file="train.py", line=6, old=f"        {CALL}", new="        loss.backward()"),
    )


def test_predicts_by_replay_what_the_peak_falls_by(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(needless().run(tmp_path)).findings
    # As it ran: two graphs of 30 MiB and two outputs of 10, when the second output is made. Without: one graph less
    # there, and no more in backward, whose gradients take the place of what goes.
    assert finding.gain.basis == "replay"
    assert finding.gain.peak_bytes == (80 - 50) * MIB
    assert finding.gain.peak_bytes_interval == pytest.approx(((80 - 50) * MIB, (80 - 50) * MIB), rel=1e-6)
    assert "keep 30.0 MiB into the next step's forward pass" in finding.message
    assert finding.severity == "medium"


def test_what_a_function_lets_go_of_at_its_end_does_not_reach_the_next_step(tmp_path: Path) -> None:
    recording = Recording()
    for step in (5, 6):
        recording.forward(step)
        recording.backward(step, own_nodes(recording, step))
        recording.allocate(step, 14.5, 300, 4)
        recording.release_graph(step, 14.8, of_step=step)
        recording.release(step, 14.9, OUTPUT + step)
    (finding,) = needless_retain_graph(recording.run(tmp_path)).findings
    assert "keep 40.0 MiB past its end" in finding.message, "what else goes at that moment is not told apart"
    # As it ran: graph, output and two gradients. Without: a block of 10 goes before each gradient, or after it.
    assert finding.gain.peak_bytes == (60 - 40) * MIB
    assert finding.gain.peak_bytes_interval == ((60 - 50) * MIB, (60 - 40) * MIB)


def test_an_operation_that_needs_its_own_result_keeps_it_until_its_node_has_run(tmp_path: Path) -> None:
    recording = Recording(operation="aten::relu")
    for step in (5, 6):
        recording.forward(step)
        recording.backward(step, own_nodes(recording, step))
        recording.allocate(step, 14.5, 300, 4)
        recording.release_graph(step, 14.8, of_step=step)
        recording.release(step, 14.9, OUTPUT + step)
    (finding,) = needless_retain_graph(recording.run(tmp_path)).findings
    assert finding.gain.peak_bytes == (60 - 50) * MIB


def test_a_call_over_several_lines_is_found(tmp_path: Path) -> None:
    text = TRAIN.replace(CALL, "loss.backward(\n            retain_graph=True,\n        )")
    (finding,) = needless_retain_graph(needless().run(tmp_path, text=text)).findings
    assert str(finding.blame) == "train.py:6"
    assert finding.fix.changes


@pytest.mark.parametrize(
    "call",
    [
        "loss.backward()",
        "loss.backward(retain_graph=is_shared)",
        "loss.backward(retain_graph=False)",
        "loss.backward(retain_graph=False, create_graph=True)",
        "loss.backward(**how)",
        "first.backward(retain_graph=True); second.backward(retain_graph=True)",
    ],
)
def test_what_is_no_plain_true_is_not_known_and_silent(tmp_path: Path, call: str) -> None:
    assert is_silent(needless().run(tmp_path, text=TRAIN.replace(CALL, call)))


def test_a_second_loss_through_the_same_graph_needs_it(tmp_path: Path) -> None:
    recording = needless()
    recording.backward(6, [recording.sequence(6)], at_ms=12.5, lasts_ms=2.5, site=SECOND_CALL)
    assert is_silent(recording.run(tmp_path))


def test_several_losses_in_a_loop_of_which_only_the_last_need_not_keep_it_are_silent(tmp_path: Path) -> None:
    recording = needless()
    recording.backward(6, own_nodes(recording, 6)[1:], at_ms=12.2, lasts_ms=3.2)
    assert is_silent(recording.run(tmp_path))


def test_a_state_carried_over_from_the_step_before_needs_it(tmp_path: Path) -> None:
    recording = Recording()
    for step in (5, 6):
        recording.forward(step)
        recording.backward(step, [*own_nodes(recording, step), recording.sequence(step - 1)], lasts_ms=9.0)
        recording.release_graph(step, 14.8, of_step=step)
    assert is_silent(recording.run(tmp_path))


def test_the_next_step_going_through_it_is_seen_without_sequence_numbers_of_steps(tmp_path: Path) -> None:
    recording = needless()
    steps = recording.steps()
    steps[5].sequence = steps[6].sequence = None
    recording.backward(6, own_nodes(recording, 5), at_ms=12.2, lasts_ms=3.2, site=SECOND_CALL)
    assert is_silent(recording.run(tmp_path, steps=steps))


def test_a_rare_step_with_one_more_backward_may_need_it(tmp_path: Path) -> None:
    recording = needless()
    assert is_silent(recording.run(tmp_path, steps=with_backwards(recording.steps(), 24, 2)))


def test_a_graph_that_something_holds_on_to_is_silent(tmp_path: Path) -> None:
    recording = Recording()
    for step in (5, 6):
        recording.forward(step)
        recording.backward(step, own_nodes(recording, step))
    assert is_silent(recording.run(tmp_path)), "the first graph is still there when the window ends"


def test_steps_that_end_with_backward_at_different_lines_are_silent(tmp_path: Path) -> None:
    recording = needless()
    steps = recording.steps()
    steps[30].backward_site = SECOND_CALL
    assert is_silent(recording.run(tmp_path, steps=steps))


def test_a_small_graph_is_not_worth_a_finding(tmp_path: Path) -> None:
    assert is_silent(needless(block=MIB // 40).run(tmp_path))


def test_a_graph_beside_much_larger_memory_is_not_worth_a_finding(tmp_path: Path) -> None:
    recording = needless()
    recording.allocate(5, 0.5, 400, 2000 * MIB)
    assert is_silent(recording.run(tmp_path))


def test_a_gradient_penalty_before_the_last_backward_does_not_need_it(tmp_path: Path) -> None:
    text = TRAIN.replace("output.mean()", "output.mean() + grad(output, batch, create_graph=True)[0].mean()")
    recording = needless()
    recording.backward(6, own_nodes(recording, 6)[:1], at_ms=4.75, lasts_ms=0.2, site="train.py:4:train")
    (finding,) = needless_retain_graph(recording.run(tmp_path, text=text)).findings
    paragraphs = next(part for part in finding.evidence if isinstance(part, Narrative)).paragraphs
    assert any(text.startswith("Line 4 calls torch.autograd.grad(..., create_graph=True)") for text in paragraphs)
    assert any("changes nothing" in text for text in paragraphs)


def creating(recording: Recording, *, again: int | None = None) -> Recording:
    """Backward of step 5 makes nodes 1503 to 1505, before step 6 begins; `again` is run later."""
    for place in range(3):
        recording.operate(5, 5.2 + 2 * place, recording.sequence(5) + 3 + place, "aten::mul")
    if again is not None:
        recording.backward(6, [again], at_ms=12.5, lasts_ms=2.5, site=SECOND_CALL)
    return recording


CREATE = TRAIN.replace("retain_graph=True", "create_graph=True")


def test_gradients_that_hold_a_graph_for_nothing_are_found(tmp_path: Path) -> None:
    (finding,) = needless_retain_graph(creating(needless()).run(tmp_path, text=CREATE)).findings
    assert finding.message.startswith("`create_graph=True` makes this backward keep")
    assert finding.fix.applicability == "review"
    paragraphs = next(part for part in finding.evidence if isinstance(part, Narrative)).paragraphs
    assert any("torch.autograd.grad(..., create_graph=True) returns" in text for text in paragraphs)


def test_second_derivatives_need_the_graph_of_the_gradients(tmp_path: Path) -> None:
    recording = creating(needless(), again=1504)
    assert is_silent(recording.run(tmp_path, text=CREATE))


def test_without_allocations_it_claims_no_gain_and_gives_a_bound(tmp_path: Path) -> None:
    run = needless().run(tmp_path, allocations=[], devices=[GPU], memory_source="CUDA caching allocator")
    (finding,) = needless_retain_graph(run).findings
    assert finding.gain.peak_bytes is None
    assert finding.severity == "low"
    numbers = next(part for part in finding.evidence if isinstance(part, Numbers)).numbers
    assert [(number.label, number.value) for number in numbers] == [
        ("left behind by forward, the most it can be", 300_000.0)
    ]


def test_without_a_trace_it_names_what_is_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=make_steps(40, backward_site=BACKWARD), sources={"train.py": TRAIN})
    with pytest.raises(NotRecorded, match=r"trace-<n>\.json\.gz"):
        needless_retain_graph(run)


def test_a_window_without_the_call_is_thin_evidence(tmp_path: Path) -> None:
    recording = Recording()
    recording.forward(5)
    with pytest.raises(ThinEvidence, match=r"train\.py:6 keeps the graph"):
        needless_retain_graph(recording.run(tmp_path))


def test_a_run_without_the_argument_passes_without_a_trace(tmp_path: Path) -> None:
    text = TRAIN.replace(CALL, "loss.backward()")
    run = write_run(tmp_path, steps=make_steps(40, backward_site=BACKWARD), sources={"train.py": text})
    assert is_silent(run)


def test_a_run_without_steps_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        needless_retain_graph(write_run(tmp_path))
