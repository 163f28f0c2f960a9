"""No test leaves a process behind: the one that does fails, and what it left is killed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import end_processes_since, started_processes
from tests.support.waiting import FOR_EVER_S, MAX_WAIT_S

ROOT = Path(__file__).parents[2]

LEAVING = f"""
import subprocess, sys
import pytest
from tests import conftest

conftest.MAX_WAIT_S = 0
ORPHAN = "import os, time; os.fork() and os._exit(0); time.sleep({FOR_EVER_S})"

def test_leaves_an_orphan():
    command = [sys.executable, "-c", ORPHAN]
    subprocess.run(command, check=True)

def test_leaves_nothing():
    pass
"""


def test_the_test_that_leaves_a_process_fails_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "test_leaving.py"
    file.write_text(LEAVING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "-p", "no:cacheprovider"]
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True, timeout=MAX_WAIT_S)
    assert "2 passed, 1 error" in done.stdout
    assert "ERROR at teardown of test_leaves_an_orphan" in done.stdout
    assert "left running, and killed now:" in done.stdout


def test_what_is_left_is_named_and_killed() -> None:
    before = set(started_processes())
    program = f"import time; print(flush=True); time.sleep({FOR_EVER_S})"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until it runs, its command is pytest's own or none
        (command,) = end_processes_since(before, patience_s=0)
    assert command.startswith(f"{process.pid} ")
    assert "time.sleep" in command
    assert list(set(started_processes()) - before) == []


def test_what_ends_by_itself_is_waited_for() -> None:
    before = set(started_processes())
    program = "import os, sys; os.fork() or sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert process.wait() == 0
    assert len(set(started_processes()) - before) == 1, "the orphan is ours now"
    assert process.stdin is not None
    process.stdin.close()
    assert end_processes_since(before, patience_s=MAX_WAIT_S) == []
