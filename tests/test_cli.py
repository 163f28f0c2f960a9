"""The command line's own answers: usage, help and the nearest right name."""

import subprocess
import sys
from pathlib import Path

import pytest

EFPROF = str(Path(sys.executable).parent / "efprof")


def run(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([EFPROF, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["record", "--"], "There is no command: write it after two dashes"),
        (["record"], "There is no command: write it after two dashes"),
        (["record", "--nane", "x", "--", "true"], "--name"),
        (["record", "--window", "none", "--", "true"], "--windows"),
        (["recrod"], "Did you mean 'record'?"),
        (["reprot"], "Did you mean 'report'?"),
        (["record", "--windows", "5:7", "--", "true"], "--windows '5:7' is not"),
        (["record", "--trace-steps", "5", "--", "true"], "--trace-steps '5' is not"),
        (["record", "--trace-steps", "7:5", "--", "true"], "--trace-steps '7:5' is not"),
        (["record", "--memory-steps", "7:5", "--", "true"], "--memory-steps '7:5' is not"),
        (["record", "--trace-steps", "5:9", "--memory-steps", "8:9", "--", "true"], "both name step 8"),
        (["record", "--triggers", "slow", "--", "true"], "--triggers 'slow' is not"),
        (["record", "--trace-steps", "1:2:3", "--", "true"], "--trace-steps '1:2:3' is not"),
        (["record", "--", "no-such-program"], "'no-such-program' is not on PATH"),
    ],
)
def test_wrong_usage_is_answered_with_what_to_do_and_exit_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback_of_an_error(tmp_path: Path) -> None:
    done = run("--debug", "record", "--", "no-such-program", folder=tmp_path)
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("efprof: the program 'no-such-program'")
    assert done.returncode == 2, "1 would say that a gate failed"


def test_a_command_like_no_other_is_answered_with_all_there_are(tmp_path: Path) -> None:
    assert "There are allocator, compare, doctor, fit, record, report." in run("xyzzy", folder=tmp_path).stderr


def test_the_commands_own_options_are_left_to_it(tmp_path: Path) -> None:
    for dashes in (["--"], []):
        program = "import sys; print(sys.argv[1:])"
        done = run("record", *dashes, sys.executable, "-c", program, "--name", "x", "--debug", folder=tmp_path)
        assert (done.returncode, done.stdout) == (0, "['--name', 'x', '--debug']\n")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["record", "--help"], ["report", "--help"], ["--version"]])
def test_help_and_version_are_printed(arguments: list[str], tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr == ""


def test_runs_are_kept_out_of_the_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    run("record", "--", sys.executable, "-c", "pass", folder=tmp_path)
    assert (tmp_path / ".efprof" / "runs").is_dir()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True)
    assert status.stdout == ""
