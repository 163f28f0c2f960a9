"""SIGUSR1 and SIGTERM in the process that trains."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from efprof.artifacts.events import EVENTS_FILE, RecordingEnded, WindowClosed
from efprof.artifacts.trace.read import read_window
from efprof.recorder.session.options import Options
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.recorder.conftest import Begin
from tests.recorder.faults.fork_server import Child
from tests.recorder.faults.programs import training
from tests.recorder.recording import Recorded
from tests.recorder.training import train_plainly
from tests.support.waiting import FOR_EVER_S, wait_until


def wait_for_steps(child: Child, count: int) -> None:
    wait_until(lambda: child.output.count("\n") >= count)


SLOWLY = f"time.sleep(0.01 if step < 3000 else {FOR_EVER_S})"
"""It never comes to its end."""


PATIENT = f"""
import time, efprof.recorder.session.signals
efprof.recorder.session.signals.KILL_AFTER_S = {FOR_EVER_S}
"""
"""On a slow core a window takes longer than the 5 s after which a program is killed."""


def test_sigterm_writes_the_open_window_and_ends_the_program_as_it_would_have(begin: Begin) -> None:
    child = begin(training(SLOWLY, num_steps=4000, first=PATIENT), trace_steps=((5, 4000),))
    wait_for_steps(child, 8)
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.02)  # as one who has no patience: the window is being written
    assert child.end_by(signal.SIGTERM) == -signal.SIGTERM
    recorded = Recorded(folder=child.folder)
    assert [event.signal for event in recorded.events(RecordingEnded)] == ["SIGTERM"]
    (window,) = recorded.events(WindowClosed)
    assert len(read_window(recorded.rank / window.files[0]))
    assert abs(child.output.count("\n") - len(recorded.steps)) <= 1
    assert "efprof" not in child.errors


HANGS = """
import ctypes, efprof.recorder.session.signals
efprof.recorder.session.signals.KILL_AFTER_S = 0.1
def hang():
    library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    print("hangs", flush=True)
    library.pthread_mutex_lock(lock)
"""


@pytest.mark.parametrize("before", ["None", "__import__('os').fork() or __import__('os')._exit(0)"],
                         ids=["at once", "after a fork"])  # fmt: skip
def test_sigterm_ends_a_program_whose_main_thread_hangs(before: str, begin: Begin) -> None:
    child = begin(training(f"{before} if step == 1 else hang() if step == 4 else None", first=HANGS))
    wait_for_steps(child, 6)
    assert child.end_by(signal.SIGTERM) == -signal.SIGTERM
    assert len(Recorded(folder=child.folder).steps) == 4


def test_a_handler_of_the_programs_own_stays(begin: Begin) -> None:
    own = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    child = begin(training(SLOWLY, first=own, num_steps=4000))
    wait_for_steps(child, 3)
    assert child.end_by(signal.SIGTERM) == 7
    assert [event.signal for event in Recorded(folder=child.folder).events(RecordingEnded)] == [None]


def test_a_forked_child_starts_without_our_handlers(begin: Begin) -> None:
    look = "print(*(signal.getsignal(number).name for number in (10, 15)), signal.set_wakeup_fd(-1), flush=True)"
    fork = f"if step == 2 and not os.fork(): {look}; os._exit(0)"
    child = begin(training(fork, first="import os, signal"), triggers=("signal",))
    assert child.wait() == 0
    assert "SIG_DFL SIG_DFL -1" in child.output


def test_no_thread_of_ours_runs_while_the_program_forks(begin: Begin) -> None:
    fork = "os.fork() or os._exit(0); print('threads:', _thread._count())"
    child = begin(training(f"exec({fork!r}) if step == 2 else None", first="import _thread, os"))
    assert child.wait() == 0
    assert "threads: 0" in child.output.splitlines()


@pytest.fixture
def nobody_handles_signals() -> Iterator[None]:
    """Whatever a library that an earlier test imported has set."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("nobody_handles_signals")
def test_sigusr1_asks_for_a_window_and_the_session_gives_both_signals_back(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path)
    options = Options(run_folder_name=str(tmp_path), root_name=str(tmp_path), trace_steps=(), triggers=("signal",))
    session = Session(options, folder, Shell(folder, LineWriter(folder, EVENTS_FILE)))
    session.start()
    train_plainly(2)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGUSR1)
    assert session.window_requests.asked == ["signal"]
    session.end()
    assert signal.getsignal(signal.SIGUSR1) is signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("efprof")]


def test_what_a_signal_asks_for_waits_until_the_recorder_is_left(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path)
    shell = Shell(folder, LineWriter(folder, EVENTS_FILE))
    order = []

    def inner() -> None:
        shell.when_left(lambda: order.append("asked for"))
        order.append("inner")

    def outer() -> None:
        shell.guarded("one", inner)()
        order.append("outer")

    shell.guarded("another", outer)()
    assert order == ["inner", "outer", "asked for"]
