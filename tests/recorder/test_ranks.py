"""The ranks of one launch, each of which records itself in code."""

from pathlib import Path

from tests.recorder.recording import Recorded
from tests.recorder.test_in_code import start

RANKS = """
with efprof.record(windows="none"):
    train(then=lambda step: {then})
with efprof.record("again", windows="none"):
    train(3)
"""


def train_ranks(home: Path, then: str) -> dict[str, Recorded]:
    """Two ranks, as torchrun starts them: children of one process, numbered in their environment."""
    both = [start(home, RANKS.format(then=then), WORLD_SIZE="2", RANK=str(rank)) for rank in range(2)]
    for process in both:
        process.communicate(timeout=60)
    runs = [Recorded(folder=run) for run in (home / "runs").iterdir()]
    assert len(runs) == len({run.run.name for run in runs})
    return {run.run.name: run for run in runs}


def test_the_ranks_of_one_launch_share_a_run(tmp_path: Path) -> None:
    recorded = train_ranks(tmp_path / "home", "None")
    assert sorted(recorded) == ["again", "train"]
    for run in recorded.values():
        assert run.run.ended == "finished"
        assert sorted(rank.name for rank in run.folder.glob("rank*")) == ["rank0", "rank1"]


def test_a_rank_that_raised_is_the_ending_of_all(tmp_path: Path) -> None:
    recorded = train_ranks(tmp_path / "home", "1 / 0 if os.environ['RANK'] == '1' and step == 2 else None")
    assert {name: run.run.ended for name, run in recorded.items()} == {"train": "raised", "again": "finished"}
