"""What the recorder leaves alone in a program: its threads, its descriptors and its recursion limit."""

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from efprof.artifacts.events import EVENTS_FILE, CollectorStopped, RecordingEnded, read_events
from efprof.recorder.loop.device import ResidentSet
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.signals import KillTimer
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.support.waiting import wait_until

ROOM = 40
"""More frames than a guarded function of these tests takes beside its own."""


def open_descriptors() -> set[int]:
    return {int(one.name) for one in list(Path("/proc/self/fd").iterdir()) if one.is_symlink()}


def with_new_descriptors(function: Callable[[], object]) -> list[int]:
    """Those that calling it leaves open."""
    before = open_descriptors()
    function()
    return sorted(open_descriptors() - before)


def take_over(descriptors: list[int], file: Path) -> None:
    """As a program does that closes what it does not know and opens a file of its own."""
    own = os.open(file, os.O_RDWR | os.O_CREAT)
    for descriptor in descriptors:
        os.dup2(own, descriptor)
    os.close(own)


def num_settled_threads() -> int:
    """Those of this process once none of another test's ends any more."""
    counts = [-1]
    while len(set(counts[-50:])) > 1 or len(counts) < 50:
        time.sleep(0.01)
        counts.append(_thread._count())
    return counts[-1]


def test_a_program_that_waits_for_all_its_threads_does_not_wait_for_the_watch() -> None:
    num_running, before, timer = num_settled_threads(), threading.enumerate(), KillTimer()
    timer.begin(None)
    try:
        wait_until(lambda: _thread._count() == num_running + 1)
        assert threading.enumerate() == before
    finally:
        timer.end()
    wait_until(lambda: _thread._count() == num_running)


@pytest.mark.parametrize("end", [KillTimer.end, KillTimer.forget])
def test_the_end_of_the_watch_neither_writes_nor_closes_a_file_of_the_programs(
    end: Callable[[KillTimer], None], tmp_path: Path
) -> None:
    timer = KillTimer()
    pipe = with_new_descriptors(lambda: timer.begin(None))
    assert len(pipe) == 2
    take_over(pipe, tmp_path / "own")
    end(timer)
    assert set(pipe) <= open_descriptors()
    assert (tmp_path / "own").read_bytes() == b""
    for descriptor in pipe:
        os.close(descriptor)


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_lines_end_in_their_file_though_the_program_closed_it(is_taken_over: bool, tmp_path: Path) -> None:
    folder = RankFolder(tmp_path)
    writer = LineWriter(folder, EVENTS_FILE)
    (descriptor,) = with_new_descriptors(lambda: writer.write(RecordingEnded(at_ns=0, step=0)))
    if is_taken_over:
        take_over([descriptor], tmp_path / "own")
    else:
        os.close(descriptor)
    new = with_new_descriptors(lambda: [writer.write(RecordingEnded(at_ns=number, step=0)) for number in (1, 2)])
    assert len(new) == 1, "it is opened once"
    assert [event.at_ns for event in read_events(folder.path)[0]] == [0, 1, 2]
    for one in {descriptor, *new} if is_taken_over else new:
        os.close(one)
    assert not is_taken_over or (tmp_path / "own").read_bytes() == b""


def test_the_resident_set_is_never_read_from_a_file_of_the_programs(tmp_path: Path) -> None:
    sets: list[ResidentSet] = []
    (descriptor,) = with_new_descriptors(lambda: sets.append(ResidentSet()))
    (tmp_path / "own").write_text("7 7 7 7")
    take_over([descriptor], tmp_path / "own")
    assert sets[0].read() > 1 << 20


def go_down(num_frames: int, function: Callable[[], object]) -> object:
    return function() if num_frames == 0 else go_down(num_frames - 1, function)


def test_a_program_near_its_recursion_limit_neither_meets_an_error_of_ours_nor_loses_a_collector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell, calls = make_shell(tmp_path), []

    def note() -> None:
        go_down(ROOM, lambda: calls.append(1))

    guarded = shell.guarded("loop", note)
    depths = [depth for depth in range(sys.getrecursionlimit()) if reaches(depth + 1)]
    for depth in depths[-2 * ROOM :]:
        go_down(depth, guarded)
    assert 0 < len(calls) < 2 * ROOM, "it failed at the deepest"
    before = len(calls)
    guarded()
    assert len(calls) == before + 1
    assert capsys.readouterr().err == ""


def reaches(depth: int) -> bool:
    """Whether the program itself may go that deep, and call a function there."""
    try:
        go_down(depth, lambda: None)
    except RecursionError:
        return False
    return True


def test_a_collector_that_recurses_without_end_itself_is_stopped(tmp_path: Path) -> None:
    shell = make_shell(tmp_path)
    shell.guarded("census", lambda: go_down(-1, lambda: None))()
    (stop,) = read_events(tmp_path / "rank0")[0]
    assert isinstance(stop, CollectorStopped)
    assert stop.reason.startswith("RecursionError")


def make_shell(folder: Path) -> Shell:
    ranks = RankFolder(folder)
    return Shell(ranks, LineWriter(ranks, EVENTS_FILE))
