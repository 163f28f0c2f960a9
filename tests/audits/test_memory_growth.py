"""memory_growth: tells of growth that no variable explains, is silent where one does, abstains on little."""

from pathlib import Path

import pytest

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.holders import HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.model import Table, ThinEvidence
from efprof.units import MIB
from tests.audits.growing_runs import TRAIN, census, leaking_steps
from tests.builders import START_NS, write_run


def test_what_a_variable_keeps_is_told_by_the_audit_of_its_own(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[census()])
    assert memory_growth(run).findings == ()
    assert len(retained_graph(run).findings) == 1


def test_where_variables_were_counted_and_none_keeps_it_the_report_says_so(tmp_path: Path) -> None:
    counted = HolderCensus(step_before=10, step_after=14, holders=[])
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[counted])
    (finding,) = memory_growth(run).findings
    assert "no variable that was counted" in finding.fix.summary
    assert "no variable of the program keeps it" in str(finding.evidence)
    assert not any(isinstance(one, Table) for one in finding.evidence), "an empty one tells nothing"


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
    with pytest.raises(ThinEvidence, match="10 steps"):
        memory_growth(write_run(tmp_path, steps=leaking_steps(10)))
