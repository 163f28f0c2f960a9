"""A command that efprof starts is paused, goes on and ends with every process that it has started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from efprof import processes
from efprof.processes import descendants_of, last_line, own_path, started
from tests.support.waiting import MAX_WAIT_S, wait_until

TREE = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100_000)"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(100_000)
"""


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return ""


def test_all_of_it_is_paused_goes_on_and_ends_whatever_session_it_is_in(tmp_path: Path) -> None:
    words, log = [sys.executable, "-c", TREE], tmp_path / "log"
    with started(words, folder=tmp_path, environment=os.environ, log=log) as command:
        wait_until(lambda: log.read_text().endswith("\n"))
        pids = [*map(int, log.read_text().split())]
        assert set(pids) <= set(descendants_of(os.getpid()))
        command.pause()
        wait_until(lambda: all(state_of(pid) == "T" for pid in pids))
        command.resume()
        wait_until(lambda: all(state_of(pid) in ("S", "R") for pid in pids))
        command.pause()
    assert command.has_ended
    assert not [pid for pid in pids if state_of(pid) not in ("", "Z")]


def test_one_that_ignores_a_polite_word_is_killed_and_what_it_said_last_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SECONDS_TO_END", 0.5)  # the fewer, the sooner it is killed
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print('efprof: no'); print('here', flush=True)\n"
    words = [sys.executable, "-c", text + "time.sleep(100_000)"]
    log = tmp_path / "log"
    with started(words, folder=tmp_path, environment=os.environ, log=log) as command:
        wait_until(lambda: "here" in log.read_text())
        assert not command.has_ended
    assert command.has_ended
    assert last_line(log) == "here"


LEAVES = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100_000)"], start_new_session=True)
near = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100_000)"])
print(child.pid, near.pid, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
os._exit(0)
"""


def test_what_it_has_started_ends_although_it_has_ended_itself(tmp_path: Path) -> None:
    words, log = [sys.executable, "-c", LEAVES], tmp_path / "log"
    with started(words, folder=tmp_path, environment=os.environ, log=log) as command:
        wait_until(lambda: log.read_text().endswith("\n"))
        pids = [*map(int, log.read_text().split())]
        command.pause()
        command.resume()
        (tmp_path / "go").touch()
        wait_until(lambda: command.has_ended)
    assert [state_of(pid) for pid in pids if state_of(pid) not in ("", "Z")] == []


KILLED = """\
import os, sys, time
from pathlib import Path
from efprof.processes import started
folder = Path(sys.argv[1])
words, log = [sys.executable, "-c", (folder / "tree.py").read_text()], folder / "log"
with started(words, folder=folder, environment=os.environ, log=log) as command:
    while not log.read_text().endswith("\\n"):
        time.sleep(0.01)
    command.pause()
    print("paused", flush=True)
    time.sleep(100_000)
"""


def test_where_efprof_is_killed_all_that_it_has_paused_ends(tmp_path: Path) -> None:
    (tmp_path / "tree.py").write_text(TREE)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "paused\n"
    pids = [*map(int, (tmp_path / "log").read_text().split())]
    process.kill()
    process.wait(MAX_WAIT_S)
    process.stdout.close()
    wait_until(lambda: all(state_of(pid) in ("", "Z") for pid in pids))


def test_programs_beside_this_python_are_found_where_no_environment_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert own_path() == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    assert own_path() == "/usr/bin"
