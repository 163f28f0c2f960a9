"""Graphs that are counted to grow in every census are a leak, though memory alone is too uneven to show it."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from efprof.artifacts.holders import HolderCensus
from efprof.audits.retained_graph import retained_graph
from efprof.facts.growing_graphs import GrowingGraphs
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.units import KIB, MIB
from tests.audits.growing_runs import SITE, TRAIN, census
from tests.builders import make_step, write_run

NODES_PER_STEP = 14
PER_STEP = 10 * KIB
"""What a step's graph takes."""
CENSUS_STEPS = ((10, 14), (16, 20), (22, 26))
READ = {*range(23), 25, 28, 32, 299}


def counts(
    steps: Sequence[tuple[int, int]] = CENSUS_STEPS, *, most: int = 10**6, **fields: object
) -> list[HolderCensus]:
    """Of a list that keeps each step's graph, and no more than `most` of them."""
    found = []
    for before, after in steps:
        kept = {
            "tensors_before": min(before, most),
            "tensors_after": min(after, most),
            "graph_nodes_before": NODES_PER_STEP * min(before, most),
            "graph_nodes_after": NODES_PER_STEP * min(after, most),
            "graph_bytes_before": 0,
            "graph_bytes_after": 0,
        }
        one = census(**{**kept, **fields})
        found.append(HolderCensus(step_before=before, step_after=after, holders=one.holders))
    return found


def uneven_run(
    folder: Path, censuses: Sequence[HolderCensus], *, seed: int = 0, most: int = 10**6, text: str = TRAIN
) -> Run:
    """Memory rises by a step's graph, up to `most` of them, and each reading lies anywhere up to 60 KiB above."""
    draw = random.Random(seed)
    steps = []
    for step in range(400):
        noise = draw.randrange(60 * KIB)
        sizes = [100 * MIB + PER_STEP * min(step, most) + noise] * 5
        steps.append(make_step(step, allocated_bytes=sizes if step in READ else [], backward_site=SITE))
    return write_run(folder, steps=steps, sources={"train.py": text}, censuses=censuses)


UNEVEN = (1, 2, 4, 6, 14)
"""Seeds whose memory alone is no plain leak."""


@pytest.mark.parametrize("seed", UNEVEN)
def test_uneven_memory_is_a_leak_where_every_census_sees_more_graphs(seed: int, tmp_path: Path) -> None:
    assert retained_graph(uneven_run(tmp_path / "uncounted", counts()[:1], seed=seed)).findings == ()
    (finding,) = retained_graph(uneven_run(tmp_path / "counted", counts(), seed=seed)).findings
    assert str(finding.blame) == "train.py:8"


def test_the_rate_is_that_of_the_nodes_and_of_what_goes_with_them(tmp_path: Path) -> None:
    rate = uneven_run(tmp_path, counts()).get(GrowingGraphs).bytes_per_step
    assert rate == pytest.approx(NODES_PER_STEP * 808, rel=0.01)


@pytest.mark.parametrize(
    "censuses",
    [
        pytest.param(counts(CENSUS_STEPS[:2]), id="two counts are too few"),
        pytest.param([*counts(CENSUS_STEPS[:2]), *counts(((22, 22),))], id="one saw it stand still"),
        pytest.param([*counts(((10, 14), (2, 6))), *counts(CENSUS_STEPS[2:])], id="it fell between two of them"),
        pytest.param(
            [*counts(CENSUS_STEPS[:2]), *counts(CENSUS_STEPS[2:], path="train.outputs", name="outputs")],
            id="one did not see it",
        ),
    ],
)
def test_graphs_that_not_every_census_sees_grow_are_no_evidence(censuses: list[HolderCensus], tmp_path: Path) -> None:
    run = uneven_run(tmp_path, censuses, seed=UNEVEN[0])
    assert run.get(GrowingGraphs).bytes_per_step == 0
    assert retained_graph(run).findings == ()


def test_graphs_that_the_program_bounds_are_no_evidence(tmp_path: Path) -> None:
    text = TRAIN.replace(
        "history.append(loss)\n", "history.append(loss)\n        if len(history) > 50: history.pop(0)\n"
    )
    run = uneven_run(tmp_path, counts(), seed=UNEVEN[0], text=text)
    assert run.get(GrowingGraphs).bytes_per_step == 0
    assert retained_graph(run).findings == ()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [0, 30, 60, 120, 150])
def test_graphs_that_stop_growing_before_memory_is_last_read_are_no_leak(most: int, seed: int, tmp_path: Path) -> None:
    """Whatever bounds them, half of the way is where a leak ends and a container that fills begins."""
    growth = uneven_run(tmp_path, counts(), seed=seed, most=most).get(MemoryGrowth)
    assert not growth.is_growing
    assert not growth.is_growing_slowly
