"""What the recorder writes when the disk lets it, and when it does not."""

import os
import threading
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
from efprof.artifacts.steps import STEPS_FILE, read_steps
from efprof.recorder.session.writing import LineWriter, RankFolder
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
    (session.rank_folder / "steps.jsonl").symlink_to("/dev/full")
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
