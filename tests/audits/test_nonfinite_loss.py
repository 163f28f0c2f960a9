"""nonfinite_loss: fires on the line in which NaN was born, is silent while all is finite."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.events import BadParameter, NonFiniteSeen, OptimizerBuilt, SuspectOperation
from efprof.artifacts.steps import StepRecord
from efprof.audits.nonfinite_loss import nonfinite_loss
from efprof.facts.run.run import Run
from efprof.model import CodeEdit, Narrative, NotRecorded, ThinEvidence
from tests.support.builders import START_NS, make_step, trace_event, write_run

TRAIN = """\
def divergence(p, q):
    ratio = p / q
    return (p * ratio.log()).sum()

def train(model, optimizer):
    for x, y in loader:
        loss = divergence(y, model(x))
        loss.backward()
        optimizer.step()

optimizer = SGD(model.parameters())
"""
BACKWARD = "train.py:8:train"
FIRST_BAD = 20


def steps(num_steps: int = 60, **fields: Any) -> list[StepRecord]:
    """NaN from FIRST_BAD on; autograd counts 100 operations in each step."""
    return [
        make_step(
            step,
            backward_site=BACKWARD,
            sequence=100 * step,
            **{
                "loss": "nan" if step >= FIRST_BAD else 1.0,
                "gradient_norm": "nan" if step >= FIRST_BAD else 0.5,
                **fields,
            },
        )
        for step in range(num_steps)
    ]


def seen(node: str = "LogBackward0", offset: int = 7) -> NonFiniteSeen:
    """The event with one suspect."""
    suspect = SuspectOperation(
        node=node,
        offset=offset,
        operand="arguments that are zero or negative",
        num_bad=1,
        num_elements=128,
        dtype="float32",
    )
    return NonFiniteSeen(at_ns=START_NS, step=FIRST_BAD, what="loss", value="nan", site=BACKWARD, suspects=[suspect])


def operation(name: str, sequence: int, at_ms: float) -> Mapping[str, Any]:
    """A forward operation of step 0."""
    return trace_event(name, at_ms, 0.1, category="cpu_op", **{"Sequence number": sequence, "Fwd thread id": 0})


def call(name: str, at_ms: float, length_ms: float, call_site: str) -> Mapping[str, Any]:
    """A Python call."""
    return trace_event(name, at_ms, length_ms, call_site=call_site)


def trace() -> list[Mapping[str, Any]]:
    """Step 0: train calls divergence, which divides by an operator and calls `.log()`."""
    return [
        call("train.py(5): train", 0.0, 15.0, "train.py:11:<module>"),
        call("train.py(1): divergence", 2.0, 2.0, "train.py:7:train"),
        operation("aten::div", 6, 2.1),
        call("<built-in method log of Tensor object at 0x7f>", 2.5, 0.5, "train.py:3:divergence"),
        operation("aten::log", 7, 2.6),
        operation("aten::mul", 8, 3.2),
    ]


def run_with(folder: Path, **fields: Any) -> Run:
    """A run that turned to NaN."""
    return write_run(folder, **{"steps": steps(), "sources": {"train.py": TRAIN}, **fields})


def test_blames_the_line_that_called_log(tmp_path: Path) -> None:
    (finding,) = nonfinite_loss(run_with(tmp_path, events=[seen()], traces=[trace()])).findings
    assert str(finding.blame) == "train.py:3"
    assert finding.fix.changes == (
        CodeEdit(
            file="train.py",
            line=3,
            old="    return (p * ratio.log()).sum()",
            new="    return (p * ratio.clamp_min(1e-06).log()).sum()",
        ),
    )
    assert finding.fix.applicability == "review"
    assert "step 20" in finding.message
    assert "1 of 128" in finding.why
    assert "40 of the 40" in finding.message


def test_a_gradient_that_breaks_under_a_finite_loss_is_to_be_hunted(tmp_path: Path) -> None:
    event = msgspec.structs.replace(seen(), what="gradient", suspects=[])
    (finding,) = nonfinite_loss(run_with(tmp_path, events=[event], traces=[trace()], steps=steps(loss=1.0))).findings
    assert str(finding.blame) == "train.py:8"
    assert finding.fix.summary.startswith("See where it is born: `efprof hunt ")
    (narrative,) = [one for one in finding.evidence if isinstance(one, Narrative)]
    assert narrative.paragraphs[1].startswith("It was made within the backward pass, of which no graph is left")


def test_without_a_window_the_operation_is_named_and_without_a_suspect_nothing_claimed(tmp_path: Path) -> None:
    (finding,) = nonfinite_loss(run_with(tmp_path, events=[seen()])).findings
    assert str(finding.blame) == "train.py:8"
    assert "`log` on a line not known" in finding.why
    assert finding.fix.applicability == "manual"
    (finding,) = nonfinite_loss(run_with(tmp_path / "second")).findings
    assert finding.fix.applicability == "manual"
    assert (finding.gain.step_ms, finding.gain.peak_bytes) == (None, None)
    assert "40 of 60 steps" in finding.gain.explanation


@pytest.mark.parametrize(
    "norms",
    [[0.5] + [0.4] * 14 + [3.0, 40.0, 900.0, 4e5, 7e9], [0.4 * 4.0**step for step in range(FIRST_BAD)]],
    ids=["after good steps", "from the first step on"],
)
def test_an_explosion_is_clipped_at_the_norm_before_it(norms: list[float], tmp_path: Path) -> None:
    exploding = [
        make_step(step, backward_site=BACKWARD, gradient_norm=norms[step] if step < FIRST_BAD else "inf")
        for step in range(40)
    ]
    (finding,) = nonfinite_loss(run_with(tmp_path, steps=exploding)).findings
    assert str(finding.blame) == "train.py:8"
    assert "exploded" in finding.why
    assert "clip_grad_norm_(model.parameters(), max_norm=0.4)" in finding.fix.summary


def test_an_explosion_that_no_full_step_saw_is_told_by_the_losses_of_all_steps(tmp_path: Path) -> None:
    def exploding(folder: str, *last: float) -> Run:
        losses = [60.0 - number for number in range(FIRST_BAD - len(last))] + [*last] + ["nan"] * 20
        made = [make_step(step, backward_site=BACKWARD, loss=loss) for step, loss in enumerate(losses)]
        for step in made:
            step.gradient_norm = None
        return run_with(tmp_path / folder, steps=made)

    (finding,) = nonfinite_loss(exploding("rises", 2.2e3, 6e12)).findings
    assert finding.why == "The loss had risen to 1e+11 times the largest before."
    assert finding.fix.summary.startswith("Clip gradients between `backward()` and the optimizer's step")
    (finding,) = nonfinite_loss(exploding("as usual", 59.0, 61.0)).findings
    assert "Which operation made the first of them was not seen." in finding.why


def test_bad_data_is_blamed_on_the_line_that_hands_it_to_the_first_operation(tmp_path: Path) -> None:
    event = seen("AddmmBackward0", 7)
    event.suspects[0].operand = "data that is NaN or Inf already"
    traced = [call("linear", 2.5, 0.5, "train.py:7:train"), operation("aten::addmm", 7, 2.6)]
    (finding,) = nonfinite_loss(run_with(tmp_path, events=[event], traces=[traced])).findings
    assert finding.blame.text == "loss = divergence(y, model(x))"
    assert "Data, or a detached tensor, holds NaN or Inf (1 of 128)" in finding.why
    assert "torch.isfinite(batch)" in finding.fix.summary


def bad_after_update(*, eps: float | None = 1e-8, has_finite_state: bool = False) -> list[Any]:
    """AdamW was built on line 11; a parameter of its was not finite before step 20's forward pass."""
    built = OptimizerBuilt(
        at_ns=START_NS, step=0, number=0, site="train.py:11:<module>", optimizer="AdamW", num_parameters=4
    )
    parameter = BadParameter(
        name="Linear.weight",
        dtype="float16",
        num_bad=3,
        num_elements=64,
        optimizer="AdamW",
        eps=eps,
        has_finite_state=has_finite_state,
    )
    return [built, msgspec.structs.replace(seen(), suspects=[], parameter=parameter)]


def test_an_update_that_turns_parameters_bad_is_blamed_on_its_optimizer_and_its_eps(tmp_path: Path) -> None:
    finite_before = steps()
    finite_before[FIRST_BAD - 1].gradient_norm = 0.5
    run = run_with(tmp_path, steps=finite_before, events=bad_after_update())
    (finding,) = nonfinite_loss(run).findings
    assert (finding.blame.line, finding.severity) == (11, "high")
    assert "AdamW's update left `Linear.weight` (float16) not finite" in finding.why
    assert finding.fix.summary.startswith("Set `AdamW(..., eps=0.0001)`, since 1e-08 is 0 in float16")


@pytest.mark.parametrize("has_finite_state", [True, False])
def test_where_no_gradient_norm_is_known_the_optimizer_s_state_tells_whether_gradients_were_finite(
    has_finite_state: bool, tmp_path: Path
) -> None:
    events = bad_after_update(eps=1e-3, has_finite_state=has_finite_state)
    run = run_with(tmp_path, steps=steps(gradient_norm=None), events=events)
    (finding,) = nonfinite_loss(run).findings
    assert ("update left" in finding.why) is has_finite_state
    assert ("Check the settings of `AdamW`" in finding.fix.summary) is has_finite_state


def test_what_a_device_told_too_late_is_to_be_run_again_where_it_is_seen_at_once(tmp_path: Path) -> None:
    too_late = msgspec.structs.replace(seen(), suspects=[], is_late=True)
    (finding,) = nonfinite_loss(run_with(tmp_path, events=[too_late])).findings
    assert "`efprof hunt " in finding.fix.summary
    (narrative,) = [one for one in finding.evidence if isinstance(one, Narrative)]
    assert narrative.paragraphs[1].startswith("No operation was looked for, since the device told the value after")


def test_where_nothing_calls_backward_the_optimizers_line_is_blamed_by_the_steps_that_were_read(tmp_path: Path) -> None:
    found = steps(loss=None)
    for record in found:
        record.backward_site = None
        if record.step in range(FIRST_BAD + 4, 60, 2):
            record.gradient_norm = None
    built = OptimizerBuilt(
        at_ns=START_NS, step=0, number=1, site="train.py:11:<module>", optimizer="SGD", num_parameters=2
    )
    run = write_run(tmp_path / "run", steps=found, events=[built], sources={"train.py": TRAIN})
    (finding,) = nonfinite_loss(run).findings
    assert (str(finding.blame), finding.severity) == ("train.py:11", "high")
    assert finding.message == (
        "The gradient is nan at step 20; 22 of the 22 steps that were read from there on are lost."
    )


def test_finite_losses_and_a_scaler_that_searches_are_silent(tmp_path: Path) -> None:
    run = run_with(tmp_path, steps=steps(loss=1.0, gradient_norm=0.5))
    assert nonfinite_loss(run).findings == ()
    scaled = [
        make_step(step, gradient_norm="inf" if step in (0, 1, 30) else 1.0, scaler_scale=65536.0) for step in range(60)
    ]
    assert nonfinite_loss(run_with(tmp_path / "second", steps=scaled)).findings == ()


def scaled_steps(num_steps: int, skipped_steps: Container[int]) -> list[StepRecord]:
    """Under a gradient scaler, whose gradients overflow in the steps it skips."""
    return [
        make_step(
            step,
            backward_site=BACKWARD,
            sequence=100 * step,
            gradient_norm="inf" if step in skipped_steps else 1.0,
            is_skipped=step in skipped_steps,
            scaler_scale=1.0,
        )
        for step in range(num_steps)
    ]


@pytest.mark.parametrize(
    "skipped_steps", [range(5), range(6, 8), range(52, 60), range(0, 60, 3), range(40)],
    ids=["at the start", "once", "at the end", "now and then", "from a scale far too large"],
)  # fmt: skip
def test_what_a_scaler_skips_to_find_its_scale_is_silent(tmp_path: Path, skipped_steps: range) -> None:
    assert nonfinite_loss(run_with(tmp_path, steps=scaled_steps(60, skipped_steps))).findings == ()


@pytest.mark.parametrize(
    ("skipped_steps", "first"),
    [(range(60), 0), (range(44, 60), 44), (range(20, 36), 20), (range(0, 60, 2), 2), ([*range(5), *range(40, 60)], 40)],
    ids=["always", "to the end", "for long", "every second step", "again and for good"],
)
def test_a_scaler_that_finds_none_is_told_from_where_it_lost_it(
    tmp_path: Path, skipped_steps: Container[int], first: int
) -> None:
    (finding,) = nonfinite_loss(run_with(tmp_path, steps=scaled_steps(60, skipped_steps))).findings
    assert f"The gradient is inf at step {first}" in finding.message


def test_a_scaler_that_skips_every_step_to_the_end_has_stopped_the_training(tmp_path: Path) -> None:
    records = scaled_steps(80, range(10, 80))
    for record in records:
        record.is_full = record.step % 8 == 0  # of the others only the flag is known
        record.gradient_norm = record.gradient_norm if record.is_full else None
    (finding,) = nonfinite_loss(run_with(tmp_path, steps=records)).findings
    assert finding.severity == "high"
    assert finding.message == ("The gradient is inf at step 10; 70 of the 70 steps from there on are held back.")


def thrown_away(skipped: Container[int], bad: Container[int]) -> list[StepRecord]:
    """Without a scaler, the program itself cleared the gradients."""
    return [
        make_step(step, loss="nan" if step in bad else 1.0, backward_site=BACKWARD, is_skipped=step in skipped)
        for step in range(60)
    ]


def test_a_bad_batch_that_the_program_throws_away_is_silent(tmp_path: Path) -> None:
    event = NonFiniteSeen(at_ns=START_NS, step=30, what="loss", value="nan", site=BACKWARD, suspects=[])
    run = run_with(tmp_path, steps=thrown_away({30, 31, 45}, {30, 31, 45}), events=[event])
    assert nonfinite_loss(run).findings == ()


@pytest.mark.parametrize(
    ("skipped", "bad", "first"),
    [({30, 31}, range(30, 60), 30), ({58, 59}, range(58, 60), 58), ({30}, {30, 40}, 40)],
    ids=["the next one is bad too", "none follows", "a later one is applied"],
)
def test_a_batch_that_was_thrown_away_in_vain_is_a_fault(
    tmp_path: Path, skipped: Container[int], bad: Container[int], first: int
) -> None:
    (finding,) = nonfinite_loss(run_with(tmp_path, steps=thrown_away(skipped, bad))).findings
    assert f"The loss is nan at step {first}" in finding.message


def test_without_losses_it_abstains_and_without_steps_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence):
        nonfinite_loss(run_with(tmp_path, steps=steps(loss=None, gradient_norm=None)))
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        nonfinite_loss(run_with(tmp_path / "second", steps=[]))
