"""What the recorder writes when the disk lets it, and when it does not; which folder of the run a process takes."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.events import (
    EVENTS_FILE,
    WHOLE_RECORDING,
    CollectorStopped,
    RecordingEnded,
    TrainingRaised,
    read_events,
)
from efprof.artifacts.files import read_lines
from efprof.artifacts.runs import PROCESS_FILE, Process, list_attempts, read_process
from efprof.artifacts.steps import STEPS_FILE, read_steps
from efprof.recorder.session import writing
from efprof.recorder.session.writing import LineWriter, RankFolder, claim_folder
from tests.recorder.hooks.test_loop_hooks import num_global_hooks
from tests.recorder.recording import open_session
from tests.recorder.training import train_plainly
from tests.support.builders import make_step


class Line(msgspec.Struct):
    number: int


def test_every_line_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writer = LineWriter(RankFolder(tmp_path), "lines.jsonl")
    for number in range(3):
        writer.write(Line(number))
        lines, num_torn = read_lines(tmp_path / "rank0" / "lines.jsonl", Line, "")
        assert ([line.number for line in lines], num_torn) == (list(range(number + 1)), 0)


def test_no_folder_is_made_before_something_is_written(tmp_path: Path) -> None:
    LineWriter(RankFolder(tmp_path), "lines.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_lines_wait_until_the_process_shows_that_it_trains(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path, waits_for_training=True)
    events, others, steps = (LineWriter(folder, name) for name in (EVENTS_FILE, "others.jsonl", STEPS_FILE))
    events.write(RecordingEnded(at_ns=1, step=0))
    others.write(Line(1))
    events.write(RecordingEnded(at_ns=2, step=0))
    assert list(tmp_path.iterdir()) == []
    steps.write(make_step(0))
    events.write(RecordingEnded(at_ns=3, step=1))
    assert [event.at_ns for event in read_events(tmp_path / "rank0")[0]] == [1, 2, 3]
    assert len(read_lines(tmp_path / "rank0" / "others.jsonl", Line, "")[0]) == 1
    assert [step.step for step in read_steps(tmp_path / "rank0")[0]] == [0]


def test_threads_that_write_first_at_once_share_one_folder_and_lose_no_line(tmp_path: Path) -> None:
    for number in range(20):  # without care, three of four tries fail
        run = tmp_path / str(number)
        run.mkdir()
        folder, barrier = RankFolder(run, waits_for_training=True), threading.Barrier(3)
        writers = [LineWriter(folder, name) for name in (STEPS_FILE, STEPS_FILE, EVENTS_FILE)]
        records = [make_step(0), make_step(1), RecordingEnded(at_ns=1, step=0)]

        def write(writer: LineWriter, record: msgspec.Struct, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            writer.write(record)

        threads = [threading.Thread(target=write, args=pair) for pair in zip(writers, records, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [path.name for path in run.iterdir()] == ["rank0"]
        assert sorted(step.step for step in read_steps(run / "rank0")[0]) == [0, 1]
        assert len(read_events(run / "rank0")[0]) == 1


@pytest.mark.parametrize(("error", "is_kept"), [("ValueError", True), ("ChildFailedError", False)])
def test_the_error_of_a_process_without_a_step_is_kept_unless_it_is_a_launchers(
    error: str, is_kept: bool, tmp_path: Path
) -> None:
    writer = LineWriter(RankFolder(tmp_path, waits_for_training=True), EVENTS_FILE)
    writer.write(TrainingRaised(at_ns=1, step=0, error=error, message="", stage=None, sites=[]))
    assert bool(list(tmp_path.iterdir())) is is_kept


def test_a_run_folder_that_vanishes_is_warned_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = LineWriter(RankFolder(tmp_path / "gone"), "lines.jsonl")
    writer.write(Line(1))
    writer.write(Line(2))
    assert capsys.readouterr().err.count("recording stops, training goes on") == 1


def test_a_full_disk_takes_every_hook_out_and_leaves_word_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = num_global_hooks()
    session = open_session(tmp_path, windows=((1, 3),))
    (session.rank_folder.path / "steps.jsonl").symlink_to("/dev/full")
    session.start()
    train_plainly(5)
    assert num_global_hooks() == before
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("efprof:")] == [
        f"efprof: {tmp_path} cannot be written (No space left on device): recording stops, training goes on"
    ]
    stops = [event for event in read_events(tmp_path / "rank0")[0] if isinstance(event, CollectorStopped)]
    assert [(stop.collector, stop.reason) for stop in stops] == [(WHOLE_RECORDING, "No space left on device")]


def test_a_last_line_after_a_torn_one_is_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LineWriter(RankFolder(tmp_path), "lines.jsonl")
    writer.write(Line(1))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:4]))
    writer.write(Line(2))
    monkeypatch.undo()
    writer.write_last(Line(3))
    lines, num_torn = read_lines(tmp_path / "rank0" / "lines.jsonl", Line, "")
    assert ([line.number for line in lines], num_torn) == ([1, 3], 1)


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
    write_process(tmp_path / "rank0", pid=dead, group="0.0")
    write_process(tmp_path / "attempt1" / "rank0", pid=dead, group="0.1")
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
