"""growing_tensors: fires on the statement that keeps tensors without graphs, and leaves graphs to retained_graph."""

from pathlib import Path

import pytest

from efprof.artifacts.holders import HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.model import ThinEvidence
from efprof.units import MIB
from tests.audits.growing_runs import TRAIN, census, leaking_steps
from tests.builders import write_run

SOURCE = TRAIN.replace("history.append(loss)", "history.append(x)")


def plain(num_bytes: int = MIB) -> HolderCensus:
    """A list that grew by one tensor of that size per step, without a graph."""
    return census(
        graph_nodes_before=0, graph_nodes_after=0, graph_bytes_before=0, graph_bytes_after=0,
        tensor_bytes_before=10 * num_bytes, tensor_bytes_after=14 * num_bytes,
    )  # fmt: skip


def test_it_blames_the_statement_and_bounds_the_holder(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": SOURCE}, censuses=[plain()])
    (finding,) = growing_tensors(run).findings
    assert str(finding.blame) == "train.py:8"
    assert "collections.deque(maxlen=" in finding.fix.summary
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)
    assert finding.headline == "`history` keeps tensors"
    assert retained_graph(run).findings == memory_growth(run).findings == ()


@pytest.mark.parametrize(
    "bound",
    [
        "    history = deque(maxlen=500)\n",
        "    if len(history) > 500:\n        history = history[1:]\n",
        "    history.pop(0)\n",
        "    del history[0]\n",
    ],
)
def test_a_container_that_is_bounded_already_only_fills_up(tmp_path: Path, bound: str) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": SOURCE + bound}, censuses=[plain()])
    assert growing_tensors(run).findings == ()


def test_graphs_are_not_its_business(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[census()])
    assert growing_tensors(run).findings == ()


def test_a_slow_growth_is_silent(tmp_path: Path) -> None:
    steps = leaking_steps(bytes_per_step=3000)
    run = write_run(tmp_path, steps=steps, sources={"train.py": SOURCE}, censuses=[plain(3000)])
    assert growing_tensors(run).findings == ()


def test_a_list_that_is_as_long_as_before_is_silent(tmp_path: Path) -> None:
    steps = leaking_steps(bytes_per_step=0)
    run = write_run(tmp_path, steps=steps, sources={"train.py": SOURCE}, censuses=[plain()])
    assert growing_tensors(run).findings == ()


def test_a_short_run_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="10 steps"):
        growing_tensors(write_run(tmp_path, steps=leaking_steps(10), censuses=[plain()]))
