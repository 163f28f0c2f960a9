"""SIGUSR1 and SIGTERM in the process that trains: the one opens a window, the other is the program's."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from efprof.artifacts.events import EVENTS_FILE, RecordingEnded
from efprof.recorder.session.options import Options
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.recorder.conftest import Begin
from tests.recorder.faults.programs import training
from tests.recorder.recording import Recorded
from tests.recorder.training import train_plainly
from tests.support.waiting import FOR_EVER_S, wait_until


def test_sigterm_ends_the_program_at_once_and_every_finished_step_is_kept(begin: Begin) -> None:
    child = begin(training(f"time.sleep({FOR_EVER_S}) if step == 7 else None", first="import time"))
    wait_until(lambda: child.output.count("\n") >= 8)
    assert child.end_by(signal.SIGTERM) == -signal.SIGTERM
    recorded = Recorded(folder=child.folder)
    assert len(recorded.steps) >= 7
    assert recorded.events(RecordingEnded) == []


def test_a_forked_child_starts_without_our_handler(begin: Begin) -> None:
    look = "print(*(signal.getsignal(number).name for number in (10, 15)), flush=True)"
    fork = f"if step == 2 and not os.fork(): {look}; os._exit(0)"
    child = begin(training(fork, first="import os, signal"), triggers=("signal",))
    assert child.wait() == 0
    assert "SIG_DFL SIG_DFL" in child.output


@pytest.fixture
def nobody_handles_signals() -> Iterator[None]:
    """Whatever a library that an earlier test imported has set."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("nobody_handles_signals")
def test_sigusr1_asks_for_a_window_and_the_session_gives_the_signal_back(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path)
    options = Options(run_folder_name=str(tmp_path), root_name=str(tmp_path), trace_steps=(), triggers=("signal",))
    session = Session(options, folder, Shell(folder, LineWriter(folder, EVENTS_FILE)))
    session.start()
    train_plainly(2)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGUSR1)
    assert session.window_requests.asked == ["signal"]
    session.end()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
