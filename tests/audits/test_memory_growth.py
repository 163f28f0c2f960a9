"""memory_growth: tells of growth that no variable explains, is silent where one does, abstains on little."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.holders import HolderCensus
from efprof.artifacts.steps import StepRecord
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.facts.run import Run
from efprof.model import Examination, Table, ThinEvidence
from efprof.units import MIB
from tests.audits.growing_runs import TRAIN, census, leaking_steps
from tests.builders import START_NS, make_step, write_run

Audit = Callable[[Run], Examination]


def test_what_a_variable_keeps_is_told_by_the_audit_of_its_own(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[census()])
    assert memory_growth(run).findings == ()
    assert len(retained_graph(run).findings) == 1


def test_where_variables_were_counted_and_none_keeps_it_the_report_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": PASSES}, censuses=[IN_VAIN])
    (finding,) = memory_growth(run).findings
    assert "no variable that was counted" in finding.fix.summary
    assert "no variable of the program was seen to keep it" in str(finding.evidence)
    assert not any(isinstance(one, Table) for one in finding.evidence), "an empty one tells nothing"


IN_VAIN = HolderCensus(step_before=10, step_after=14, holders=[])
PASSES = """\
def train(model, loader, optimizer):
    features, names = [], []
    for x, y in loader:
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
FILLS = f"{PASSES}        features.append(numpy.array(x))\n"


def test_where_no_variable_keeps_tensors_the_one_container_that_is_never_emptied_is_blamed(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": FILLS}, censuses=[IN_VAIN])
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:8"
    assert finding.headline == "`features` is filled, and never emptied"
    assert "collections.deque(maxlen=...)" in finding.fix.summary
    assert "by its text, not by a count" in str(finding.evidence), "how sure it is"


def test_of_two_such_containers_neither_is_blamed_and_both_are_named(tmp_path: Path) -> None:
    both = f"{FILLS}        names.append(describe(x))\n"
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": both}, censuses=[IN_VAIN])
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:6"
    assert "`features` at train.py:8 and `names` at train.py:9" in finding.fix.summary


@pytest.mark.parametrize(
    ("censuses", "memory_source"),
    [
        ([], "C allocator"),
        ([msgspec.structs.replace(IN_VAIN, is_partial=True)], "C allocator"),
        ([IN_VAIN], "CUDA caching allocator"),
    ],
    ids=["nobody counted", "the count was cut off", "of a GPU, which holds tensors alone"],
)
def test_a_container_is_not_blamed_where_tensors_may_be_it(
    censuses: list[HolderCensus], memory_source: str, tmp_path: Path
) -> None:
    run = write_run(
        tmp_path, steps=leaking_steps(), sources={"train.py": FILLS}, censuses=censuses, memory_source=memory_source
    )
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:6"


SIZES = (
    139033536, 139062112, 139068912, 139076288, 139081648, 144521680, 149306448, 139679136, 139678064, 139678528,
    139678912, 139869312, 139869632, 139869616, 139870000, 139869872, 139869712, 139869952, 139870656, 139870848,
    140009552, 140008928, 140008768, 140008752,
)  # fmt: skip
"""After the steps of a sound program: steps 5 and 6 are a window, after steps 10 and 19 holders were counted."""


def test_what_counting_holders_leaves_behind_is_no_growth(tmp_path: Path) -> None:
    steps = [
        make_step(step, allocated_bytes=[size] * 5, window="trace-1" if step in (5, 6) else None)
        for step, size in enumerate(SIZES)
    ]
    counted = HolderCensus(step_before=10, step_after=19, holders=[])
    assert memory_growth(write_run(tmp_path / "counted", steps=steps, censuses=[counted])).findings == ()
    assert len(memory_growth(write_run(tmp_path / "uncounted", steps=steps)).findings) == 1, "else it looks like some"


def test_what_no_variable_keeps_is_told_here_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN})
    assert len(memory_growth(run).findings) == 1
    assert retained_graph(run).findings == growing_tensors(run).findings == ()


def test_without_a_census_the_line_whose_allocations_survive_is_blamed(tmp_path: Path) -> None:
    events = [
        AllocationEvent(
            time_ns=START_NS + step * 1_000_000_000 + 2_000_000,
            address=step + 1,
            num_bytes=MIB,
            operation="aten::addmm",
            stack=("train.py:4:train",),
            forward_stack=(),
            modules=("Model",),
            is_backward=False,
        )
        for step in (40, 41, 42)
    ]
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, allocations=[events])
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:4"
    assert finding.fix.applicability == "manual"
    assert "; most of it is allocated by this line and still alive a step later." in finding.message, "after the end"


PENALTY = """\
def train(model, loader, optimizer):
    for x in loader:
        x.requires_grad_()
        out = model(x).sum()
        out.backward(create_graph=True)
        x.grad.square().mean().backward()
        optimizer.step()
"""


def test_a_gradient_that_leads_back_to_its_tensor_is_blamed_on_the_call_that_made_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": PENALTY})
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:5"
    assert finding.headline == "`x.grad` leads back to its own tensor"
    assert "because the gradient that this call gives `x` has a graph that leads back to it" in finding.message
    assert "`x.grad = None`" in finding.fix.summary
    assert "each step makes `x` at train.py:3" in str(finding.evidence)


def events_of(line: int, at_ms: float) -> list[AllocationEvent]:
    """A mebibyte that a line allocates in each of three steps and nobody gives back."""
    return [
        AllocationEvent(
            time_ns=START_NS + step * 1_000_000_000 + round(at_ms * 1_000_000),
            address=1000 * line + step + 1,
            num_bytes=MIB,
            operation="aten::clone",
            stack=(f"train.py:{line}:train",),
            forward_stack=(),
            modules=(),
            is_backward=False,
        )
        for step in (40, 41, 42)
    ]


def test_what_survives_beside_the_pass_is_likelier_than_such_a_gradient(tmp_path: Path) -> None:
    in_forward, after_backward = 2.0, 14.0
    beside = write_run(
        tmp_path / "beside", steps=leaking_steps(), sources={"train.py": PENALTY},
        allocations=[events_of(7, after_backward)],
    )  # fmt: skip
    within = write_run(
        tmp_path / "within", steps=leaking_steps(), sources={"train.py": PENALTY},
        allocations=[sorted(events_of(4, in_forward) + events_of(2, after_backward), key=lambda one: one.time_ns)],
    )  # fmt: skip
    (of_beside,), (of_within,) = memory_growth(beside).findings, memory_growth(within).findings
    assert str(of_beside.blame) == "train.py:7"
    assert str(of_within.blame) == "train.py:5"


def test_a_variable_that_is_seen_to_keep_it_is_likelier_than_such_a_gradient(tmp_path: Path) -> None:
    text = PENALTY.replace("    for x", "    history = []\n    for x") + "        history.append(out)\n"
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": text}, censuses=[census()])
    assert memory_growth(run).findings == ()
    assert len(retained_graph(run).findings) == 1


def test_a_holder_that_explains_little_of_the_slope_is_not_blamed(tmp_path: Path) -> None:
    small = census(graph_bytes_before=0, graph_bytes_after=0)
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[small])
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:6"


def test_without_any_holder_the_loop_is_named_and_the_doubt_said(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN})
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:6"
    assert "not known" in finding.message


def test_steady_memory_is_silent(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(bytes_per_step=0), sources={"train.py": TRAIN}, censuses=[census()])
    assert memory_growth(run).findings == ()


def test_a_short_run_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match=r"after 10 of 10 steps outside windows, a trend needs 20; record a longer"):
        memory_growth(write_run(tmp_path, steps=leaking_steps(10)))


def test_a_run_whose_windows_take_the_readings_names_the_option_that_leaves_them(tmp_path: Path) -> None:
    steps = leaking_steps(24)
    for step in steps[4:12]:
        step.window = "trace-1"
    with pytest.raises(ThinEvidence, match=r"after 16 of 24 steps .* 'efprof record --windows none'"):
        memory_growth(write_run(tmp_path, steps=steps))


def test_a_run_whose_memory_was_never_read_is_not_judged(tmp_path: Path) -> None:
    steps = leaking_steps(60)
    for step in steps:
        step.memory = []
    with pytest.raises(ThinEvidence, match=r"after 0 of 60 steps .* short steps are read now and then"):
        memory_growth(write_run(tmp_path, steps=steps))


def read_early(*, bytes_per_step: int = MIB) -> list[StepRecord]:
    """240 steps, of which the first forty are read, as short ones are."""
    steps = leaking_steps(240, bytes_per_step)
    for step in steps[40:]:
        step.memory = []
    return steps


@pytest.mark.parametrize("audit", [memory_growth, retained_graph, growing_tensors])
def test_what_passes_says_how_many_steps_were_read(audit: Audit, tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", steps=leaking_steps(bytes_per_step=0))
    assert audit(whole).looked_at == "memory retained after 60 of 60 steps"
    early = write_run(tmp_path / "early", steps=read_early(bytes_per_step=0))
    assert audit(early).looked_at == "memory retained after 40 of 240 steps, none of them later than step 39"


def test_growth_that_is_known_early_only_is_told_up_to_there(tmp_path: Path) -> None:
    (finding,) = memory_growth(write_run(tmp_path, steps=read_early(), sources={"train.py": TRAIN})).findings
    assert finding.message.startswith("Memory grew 1.00 MiB per step; at this rate")
    assert "; what holds it is not known" in finding.message
    assert finding.message.endswith("; memory was last read after step 39 of 239.")
    assert "the measured slope up to step 39," in finding.gain.explanation
    assert finding.gain.peak_bytes == 39 * MIB
    assert "rise up to step 39" in str(finding.evidence)
    assert "Whether it went on growing is not known" in str(finding.evidence)


def test_early_growth_that_would_end_the_run_is_told_as_a_condition(tmp_path: Path) -> None:
    steps = read_early(bytes_per_step=64 * MIB)
    (finding,) = memory_growth(write_run(tmp_path, steps=steps, sources={"train.py": TRAIN})).findings
    assert "; if it goes on, it ends this run at step " in finding.message


def test_growth_that_is_known_to_the_end_is_told_of_the_whole_run(tmp_path: Path) -> None:
    (finding,) = memory_growth(write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN})).findings
    assert finding.message.startswith("Memory grows 1.00 MiB per step")
    assert "over the recorded steps" in finding.gain.explanation
    assert "last read" not in finding.message


def test_an_end_that_lies_far_beyond_what_was_recorded_is_not_foretold(tmp_path: Path) -> None:
    """16 GiB at a MiB per step last for 16,000 steps: 80 times as many as 200, 270 times as many as 60."""
    near = write_run(tmp_path / "near", steps=leaking_steps(200), sources={"train.py": TRAIN})
    far = write_run(tmp_path / "far", steps=leaking_steps(60), sources={"train.py": TRAIN})
    (of_near,), (of_far,) = memory_growth(near).findings, memory_growth(far).findings
    assert "would last until step ~16,000" in of_near.message
    assert "step at which it is used up" in str(of_near.evidence)
    assert "last until" not in of_far.message
    assert "used up" not in str(of_far.evidence)
    assert (of_near.severity, of_far.severity) == ("medium", "low")


def test_an_end_that_makes_it_severe_is_told_however_few_steps_were_recorded(tmp_path: Path) -> None:
    steps = leaking_steps(30, 4 * MIB)
    (finding,) = memory_growth(write_run(tmp_path, steps=steps, sources={"train.py": TRAIN})).findings
    assert finding.severity == "high"
    assert "will end this run at step ~4,000" in finding.message
    assert "Whether it went on growing" not in str(finding.evidence)
