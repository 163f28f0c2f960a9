"""The ranks of one launch, each of which records itself in code."""

import pytest

from tests.recorder.launch.test_in_code import start
from tests.recorder.recording import Recorded
from tests.support.patience import MAX_WAIT_S

RANKS = """
with efprof.record(windows="none"):
    train()
with efprof.record("again", windows="none"):
    train(3)
with efprof.record("failed", windows="none"):
    train(then=lambda step: 1 / 0 if os.environ["RANK"] == "1" and step == 2 else None)
with efprof.record("alone", windows="none"):
    train(3)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    """What two ranks left, started as torchrun does: children of one process, numbered in their environment."""
    home = tmp_path_factory.mktemp("ranks") / "home"
    both = [start(home, RANKS, WORLD_SIZE="2", RANK=str(rank)) for rank in range(2)]
    errors = [process.communicate(timeout=MAX_WAIT_S)[1] for process in both]
    assert [process.returncode for process in both] == [0, 1], errors
    runs = [Recorded(folder=run) for run in (home / "runs").iterdir()]
    assert len(runs) == len({run.run.name for run in runs})
    return {run.run.name: run for run in runs}


def test_the_ranks_of_one_launch_share_a_run(recorded: dict[str, Recorded]) -> None:
    for name in ("train", "again"):
        assert recorded[name].run.ended == "finished"
        assert sorted(rank.name for rank in recorded[name].folder.glob("rank*")) == ["rank0", "rank1"]


def test_each_statement_is_a_run_of_all_its_ranks(recorded: dict[str, Recorded]) -> None:
    assert sorted(recorded) == ["again", "alone", "failed", "train"]


def test_a_rank_that_raised_is_the_ending_of_all(recorded: dict[str, Recorded]) -> None:
    assert {name: recorded[name].run.ended for name in ("failed", "alone")} == {"failed": "raised", "alone": "finished"}
