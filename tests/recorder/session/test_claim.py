"""Which folder of the run a training process takes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.runs import PROCESS_FILE, Process, list_attempts, read_process
from efprof.artifacts.steps import STEPS_FILE
from efprof.recorder.session import writing
from efprof.recorder.session.writing import claim_folder


@pytest.fixture
def dead() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write_process(rank: Path, *, pid: int, group: str = "") -> None:
    """Leave what a process of that number left when it took the folder, long ago."""
    rank.mkdir(parents=True)
    (rank / PROCESS_FILE).write_bytes(msgspec.json.encode(Process(pid=pid, group=group)))
    os.utime(rank / PROCESS_FILE, (0, 0))


def claim(run: Path) -> str:
    return claim_folder(run).relative_to(run).as_posix()


@pytest.mark.parametrize(("rank", "folder"), [("2", "rank2"), ("", "rank0"), ("not a number", "rank0")])
def test_the_folder_is_numbered_by_the_launcher(
    rank: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    assert claim(tmp_path) == folder
    assert read_process(tmp_path / folder) == Process(pid=os.getpid())


def test_processes_that_run_at_once_and_have_no_number_take_the_next_free_one(tmp_path: Path) -> None:
    assert [claim(tmp_path) for _ in range(3)] == ["rank0", "rank1", "rank2"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_process_after_all_others_have_ended_begins_a_further_attempt(tmp_path: Path, dead: int) -> None:
    write_process(tmp_path / "rank0", pid=dead)
    assert [claim(tmp_path), claim(tmp_path)] == ["attempt1/rank0", "attempt1/rank1"]


def test_a_process_that_ran_beside_one_that_has_ended_is_of_the_same_attempt(tmp_path: Path, dead: int) -> None:
    write_process(tmp_path / "rank0", pid=dead)
    (tmp_path / "rank0" / STEPS_FILE).write_text("{}")  # while this process ran
    assert claim(tmp_path) == "rank1"


def test_a_process_that_began_after_the_last_step_of_all_others_is_a_further_attempt(tmp_path: Path, dead: int) -> None:
    write_process(tmp_path / "rank0", pid=dead)
    (tmp_path / "rank0" / STEPS_FILE).write_text("{}")
    long_ago = time.time() - (time.monotonic_ns() - writing._IMPORTED_NS) / 1e9 - 1.0
    os.utime(tmp_path / "rank0" / STEPS_FILE, (long_ago, long_ago))
    assert claim(tmp_path) == "attempt1/rank0"


def test_a_rank_that_is_taken_means_a_further_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert [claim(tmp_path) for _ in range(3)] == ["rank1", "attempt1/rank1", "attempt2/rank1"]


def test_a_restarted_rank_joins_the_others_of_its_attempt_though_it_never_trained_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    write_process(tmp_path / "rank0", pid=dead, group=f"{os.getppid()}.0")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for rank, folder in (("1", "attempt1/rank1"), ("0", "attempt1/rank0")):
        monkeypatch.setenv("RANK", rank)
        assert claim(tmp_path) == folder


def test_the_first_attempt_to_train_keeps_the_number_that_the_launcher_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert claim(tmp_path) == "attempt2/rank0"


def test_a_second_launch_in_the_same_run_comes_after_the_attempts_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    write_process(tmp_path / "rank0", pid=dead, group="1.0")
    write_process(tmp_path / "attempt1" / "rank0", pid=dead, group="1.1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("RANK", "1")
    assert claim(tmp_path) == "attempt2/rank1"


def test_a_folder_without_word_of_its_process_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / PROCESS_FILE).write_text("torn")
    assert claim(tmp_path) == "attempt1/rank0"
    assert [attempt.number for attempt in list_attempts(tmp_path)] == [0, 1]


def test_a_run_folder_that_is_gone_stays_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        claim_folder(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
