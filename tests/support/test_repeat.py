"""Tests are run again and again: what was done is not done again, failures are counted, and busy loops end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.busy import busy_loops
from tests.support.processes import end_processes_since, started_processes
from tests.support.repeat import Result, main, read_results, table
from tests.support.waiting import MAX_WAIT_S

NO_PLUGINS = [f"-pno:{name}" for name in ("xdist", "hypothesispytest", "anyio")]

FAILS_BESIDE_BUSY_LOOPS = """
import os

def test_is_disturbed():
    assert os.environ["EFPROF_REPEAT_ROUND"] == "0"

def test_is_not():
    pass
"""


def test_a_run_goes_on_where_it_stopped_and_counts_what_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tests, file = tmp_path / "test_disturbed.py", tmp_path / "results.jsonl"
    tests.write_text(FAILS_BESIDE_BUSY_LOOPS)
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), *NO_PLUGINS, str(tests)]
    assert main(file, 1, options) == 0
    lines = file.read_bytes().splitlines()
    file.write_bytes(lines[0] + b"\n")  # as if it had been stopped after the first test
    assert main(file, 2, options) == 1
    assert [(one.test.rpartition("_")[2], one.round, one.failure is None) for one in read_results(file)] == [
        ("disturbed", 0, True), ("not", 0, True), ("disturbed", 1, False), ("not", 1, True),
    ]  # fmt: skip
    said = capfd.readouterr().out
    assert "test_is_disturbed | 0 of 1 failed | 1 of 1 failed | call: AssertionError: assert '1' == '0'" in said
    assert "1 of 2 tests never failed in 2 rounds." in said


def test_a_failure_in_a_quiet_round_stands_in_its_own_column() -> None:
    results = [
        Result(test="a", round=number, load=0.0, failure="call: E a | b" if number == 2 else None)
        for number in range(4)
    ]
    assert [*table(results)][2] == "| a | 1 of 2 failed | 0 of 2 failed | call: E a \\| b |"


def test_busy_loops_run_beside_and_are_ended() -> None:
    before = set(started_processes())
    with busy_loops(2):
        assert len(set(started_processes()) - before) == 2
    assert set(started_processes()) <= before


def test_busy_loops_end_with_a_process_that_is_killed() -> None:
    before = set(started_processes())
    text = "from tests.support.busy import busy_loops\nwith busy_loops(2):\n    print(flush=True)\n    input()"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(set(started_processes()) - before) == 3
        process.send_signal(signal.SIGKILL)
    assert end_processes_since(before, patience_s=MAX_WAIT_S) == []
