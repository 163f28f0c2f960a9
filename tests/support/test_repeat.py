"""Tests are run again and again: what was done is not done again, failures are counted, and busy loops end."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.busy import busy_loops
from tests.support.processes import end_processes_since, started_processes
from tests.support.repeat import NEVER_ENDED, ROOT, Result, main, split_tests, state_of, table
from tests.support.waiting import FOR_EVER_S, MAX_WAIT_S, wait_until

NO_PLUGINS = [f"-pno:{name}" for name in ("xdist", "hypothesispytest", "anyio")]

FAILS_BESIDE_BUSY_LOOPS = """
import os

def test_is_disturbed():
    assert os.environ["EFPROF_REPEAT_ROUND"] == "0"

def test_is_not():
    pass
"""

DISTURBED = "call: AssertionError: assert '1' == '0'  - 0 + 1"

WAITS_ONCE = f"""
import time
from pathlib import Path

def test_it():
    waits = Path(__file__).with_name("waits")
    if not waits.exists():
        waits.touch()
        time.sleep({FOR_EVER_S})
"""

NAMES_WITH_BLANKS = """
import pytest

@pytest.mark.parametrize("name", ["a, b", "c", "d"])
def test_it(name):
    pass
"""


def outcomes(file: Path) -> list[tuple[str, int, str | None]]:
    """Of all results in the file: the last word of the test's name, the round, and why it failed."""
    results = [msgspec.json.decode(line, type=Result) for line in file.read_bytes().splitlines()]
    return [(one.test.rpartition("_")[2], one.round, one.failure) for one in results if one.state == "ended"]


@pytest.mark.long
def test_a_run_goes_on_where_it_stopped_and_counts_what_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tests, file = tmp_path / "test_disturbed.py", tmp_path / "results.jsonl"
    tests.write_text(FAILS_BESIDE_BUSY_LOOPS)
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), *NO_PLUGINS, str(tests)]
    assert main(file, 1, options, "commit") == 0
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join(lines[:2]) + b"\n")  # as if it had been stopped after the first test
    assert main(file, 2, options, "commit") == 1
    assert outcomes(file) == [("disturbed", 0, None), ("not", 0, None), ("disturbed", 1, DISTURBED), ("not", 1, None)]
    assert file.read_bytes().count(b'disturbed"') == 4  # began and ended, twice
    said = capfd.readouterr().out
    assert f"test_is_disturbed | 0 of 1 failed | 1 of 1 failed | {DISTURBED}" in said
    assert "1 of 2 tests never failed in 2 rounds." in said


@pytest.mark.long
def test_what_failed_at_another_commit_or_among_other_tests_does_not_count(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tests, file = tmp_path / "test_mended.py", tmp_path / "results.jsonl"
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), *NO_PLUGINS, str(tests)]
    tests.write_text("def test_it():\n    assert False\n")
    assert main(file, 1, options, "before") == 1
    tests.write_text("def test_it():\n    pass\n\ndef test_more():\n    pass\n")
    assert main(file, 1, options, "after") == 0
    assert main(file, 1, [*options, "-ktest_it"], "after") == 0
    *_, last = capfd.readouterr().out.splitlines()
    assert last == "1 of 1 tests never failed in 1 rounds."


def test_a_test_that_crashes_pytest_has_failed_and_the_round_goes_on(tmp_path: Path) -> None:
    tests, file = tmp_path / "test_crash.py", tmp_path / "results.jsonl"
    tests.write_text("import os\n\ndef test_crash():\n    os._exit(3)\n\ndef test_after():\n    pass\n")
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), *NO_PLUGINS, str(tests)]
    assert main(file, 1, options, "commit") == 1
    assert outcomes(file) == [("crash", 0, NEVER_ENDED), ("after", 0, None)]
    lines = file.read_bytes()
    assert main(file, 1, options, "commit") == 1
    assert file.read_bytes() == lines


@pytest.mark.long
def test_a_test_that_began_and_never_ended_has_failed_and_is_not_run_again(tmp_path: Path) -> None:
    tests, file = tmp_path / "test_killed.py", tmp_path / "results.jsonl"
    tests.write_text("def test_killed():\n    pass\n")
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), *NO_PLUGINS, str(tests)]
    assert main(file, 1, options, "commit") == 0
    began, _ = file.read_bytes().splitlines()
    file.write_bytes(began + b"\n")
    assert main(file, 1, options, "commit") == 1
    assert outcomes(file) == [("killed", 0, NEVER_ENDED)]


@pytest.mark.long
def test_a_test_under_way_as_the_run_is_stopped_is_run_again(tmp_path: Path) -> None:
    tests, file = tmp_path / "test_stopped.py", tmp_path / "results.jsonl"
    tests.write_text(WAITS_ONCE)
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), *NO_PLUGINS, str(tests)]
    command = [sys.executable, "-m", "tests.support.repeat", str(file), "1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until((tmp_path / "waits").exists)
        process.terminate()
        assert "Stopped in round 0; the same command goes on there." in process.communicate()[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("1 of 1 tests never failed in 1 rounds.\n")
    assert done.returncode == 0


def test_names_with_blanks_and_commas_are_quoted_or_stand_one_per_line() -> None:
    assert split_tests("tests/a.py 'tests/b.py::test[x, y]' -m long") == [
        "tests/a.py", "tests/b.py::test[x, y]", "-m", "long",
    ]  # fmt: skip
    assert split_tests("\ntests/b.py::test[it's, y]\n tests/a.py\n") == ["tests/b.py::test[it's, y]", "tests/a.py"]
    assert split_tests("") == []


def test_make_hands_names_with_blanks_on(tmp_path: Path) -> None:
    tests, file = tmp_path / "test_names.py", tmp_path / "results.jsonl"
    tests.write_text(NAMES_WITH_BLANKS)
    lines = ["-c", os.devnull, f"--rootdir={tmp_path}", *NO_PLUGINS, f"{tests}::test_it[a, b]", f"{tests}::test_it[c]"]
    quiet = ["make", "--silent", "repeat", f"BIN={Path(sys.executable).parent}", "TESTS_INSTALLED=", f"RESULTS={file}"]
    for text in ("\n".join(lines), shlex.join(lines)):
        done = subprocess.run(
            [*quiet, "ROUNDS=1", f"TESTS={text}"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert "2 of 2 tests never failed in 1 rounds." in done.stdout, done.stderr


def test_a_repository_has_another_state_where_a_file_was_changed_or_is_new(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "code.py").write_text("1\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    clean = state_of(tmp_path)
    assert len(clean) == 8
    states = {clean}
    for file, text in (("code.py", "2\n"), ("code.py", "3\n"), ("new.py", "4\n")):
        (tmp_path / file).write_text(text)
        states.add(state_of(tmp_path))
    assert len(states) == 4
    assert all(state.startswith(clean) for state in states)
    (tmp_path / "code.py").write_text("1\n")
    (tmp_path / "new.py").unlink()
    assert state_of(tmp_path) == clean


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
