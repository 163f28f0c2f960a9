"""What each holder had whenever Python's objects were counted."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from efprof.artifacts.holders import Holder, HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.facts.holder_staircase import HolderStaircase
from efprof.facts.run import open_run
from efprof.model import Series
from tests.builders import make_steps, write_run

RUNS = Path(__file__).parents[1] / "runs"


def holder(path: str, before: int, after: int) -> Holder:
    """A list of tensors without graphs."""
    fields: dict[str, Any] = {"scope": "local", "owner": "train", "name": path, "file": "train.py", "type": "list"}
    for count in ("tensors", "graph_nodes", "graph_bytes", "length"):
        fields |= {f"{count}_before": 0, f"{count}_after": 0}
    return Holder(path=path, tensor_bytes_before=before, tensor_bytes_after=after, **fields)


def census(first: int, last: int, *holders: Holder, is_partial: bool = False) -> HolderCensus:
    return HolderCensus(step_before=first, step_after=last, holders=list(holders), is_partial=is_partial)


def staircases(folder: Path, *censuses: HolderCensus) -> dict[str, tuple[tuple[int, int], ...]]:
    run = write_run(folder, steps=make_steps(3), censuses=censuses)
    return {one.path: one.sizes for one in run.get(HolderStaircase).holders}


def test_every_census_is_a_further_stretch_of_the_staircase(tmp_path: Path) -> None:
    censuses = census(10, 14, holder("history", 100, 140)), census(50, 54, holder("history", 500, 540))
    assert staircases(tmp_path, *censuses) == {"history": ((10, 100), (14, 140), (50, 500), (54, 540))}


def test_the_fastest_grower_of_the_last_census_comes_first(tmp_path: Path) -> None:
    censuses = census(10, 14, holder("early", 0, 900)), census(50, 54, holder("slow", 0, 4), holder("fast", 0, 40))
    assert list(staircases(tmp_path, *censuses)) == ["fast", "slow"]


def test_two_objects_of_one_path_are_counted_together(tmp_path: Path) -> None:
    both = census(10, 14, holder("Layer.cache", 1, 5), holder("Layer.cache", 2, 8))
    assert staircases(tmp_path, both) == {"Layer.cache": ((10, 3), (14, 13))}


def test_a_count_that_ran_out_of_time_is_left_out(tmp_path: Path) -> None:
    censuses = census(10, 14, holder("a", 1, 5)), census(20, 24, holder("a", 7, 7), is_partial=True)
    assert staircases(tmp_path, *censuses) == {"a": ((10, 1), (14, 5))}


def test_the_finding_draws_the_blamed_holder_rising_step_by_step() -> None:
    (finding,) = growing_tensors(open_run(RUNS / "growing_tensors-sick")).findings
    (picture,) = [
        one for one in finding.evidence if isinstance(one, Series) and one.title == "What HardExamples.pictures has"
    ]
    (blamed,) = [line for line in picture.lines if line.is_highlighted]
    assert blamed.label == "HardExamples.pictures"
    assert len(blamed.x) >= 4
    assert all(earlier < later for earlier, later in pairwise(blamed.x))
    assert all(earlier < later for earlier, later in pairwise(blamed.y))
