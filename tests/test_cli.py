"""The command line's own answers: usage, help and the nearest right name."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from efprof.cli import main
from tests.support.waiting import MAX_WAIT_S

EFPROF = str(Path(sys.executable).parent / "efprof")


def run(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([EFPROF, *arguments], cwd=folder, capture_output=True, text=True, timeout=MAX_WAIT_S)


Answer = Callable[..., tuple[object, str, str]]


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    """What `efprof` says to these words in an empty folder: its exit code, and what it printed here and there."""
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def main_of(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["efprof", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code, *capsys.readouterr())

    return main_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("record --", "there is no command: write it after two dashes"),
        ("record --nane x -- true", "No such option '--nane'. Did you mean '--name'?"),
        ("record --name", "Option '--name' requires an argument."),
        ("recrod", "there is no command 'efprof recrod'; did you mean 'record'?"),
        ("record --windows 5:7 -- true", "--windows '5:7' is not"),
        ("record --trace-steps 7:5 -- true", "--trace-steps '7:5' is not"),
        ("record --trace-steps 5:9 --memory-steps 8:9 -- true", "--trace-steps and --memory-steps both name step 8"),
        ("record --triggers slow -- true", "--triggers 'slow' is not"),
        ("record -- no-such-program", "the program 'no-such-program' is not on PATH"),
        ("report a b", "b cannot be reported with a: give one run, or files of one training."),
        ("doctor a", "Got unexpected extra argument (a) Try 'efprof doctor --help'."),
        (
            "report --format xml",
            "Invalid value for '--format': 'xml' is not one of 'text', 'json', 'markdown', 'html', 'github'.",
        ),
        ("report --json --format html", "--json and --format html contradict each other"),
        ("report --budget 0", "Invalid value for '--budget': '0' is not a size above zero; write one such as 24GiB"),
        ("report /no/run", "there is no run '/no/run'"),
        ("compare a", "Missing argument 'HEAD'. Try 'efprof compare --help'."),
        ("compare a b --budget step_ms", "Invalid value for '--budget': 'step_ms' is not METRIC=PERCENT"),
        ("compare no.pickle b", "there is no run 'no.pickle'"),
        ("fit -- true {batch}", "Missing option '--budget'. Try 'efprof fit --help'."),
        ("fit --budget 1G -- true", "the command must name the batch size as {batch}"),
        ("allocator rply", "No such command 'rply'. Did you mean 'replay'? Try 'efprof allocator --help'."),
        ("allocator replay", "Missing argument 'FILE'. Try 'efprof allocator replay --help'."),
        ("allocator replay no.pickle", "no.pickle cannot be read: No such file or directory"),
        (
            "allocator what-if x --device-memory -1GiB",
            "Invalid value for '--device-memory': '-1GiB' is not a size above zero",
        ),
    ],
)
def test_wrong_usage_is_answered_in_one_sentence_with_what_to_do_and_exit_2(
    words: str, said: str, answer: Answer, tmp_path: Path
) -> None:
    code, out, err = answer(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"efprof: {said}")
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback_of_an_error(tmp_path: Path) -> None:
    done = run("--debug", "record", "--", "no-such-program", folder=tmp_path)
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("efprof: the program 'no-such-program'")
    assert done.returncode == 2, "1 would say that a gate failed"


def test_the_commands_own_options_are_left_to_it(tmp_path: Path) -> None:
    for dashes in (["--"], []):
        program = "import sys; print(sys.argv[1:])"
        done = run("record", *dashes, sys.executable, "-c", program, "--name", "x", "--debug", folder=tmp_path)
        assert (done.returncode, done.stdout) == (0, "['--name', 'x', '--debug']\n")


@pytest.mark.parametrize("words", ["--help", "-h", "record --help", "report --help", "--version"])
def test_help_and_version_are_printed(words: str, answer: Answer) -> None:
    code, out, err = answer(*words.split())
    assert (code, err) == (0, "")
    assert out


@pytest.mark.parametrize("words", ["", "allocator"])
def test_a_group_without_a_subcommand_shows_its_help_as_an_error(words: str, answer: Answer) -> None:
    code, out, err = answer(*words.split())
    assert (code, out) == (2, "")
    assert "\nCommands:\n" in err


def test_runs_are_kept_out_of_the_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    run("record", "--", sys.executable, "-c", "pass", folder=tmp_path)
    assert (tmp_path / ".efprof" / "runs").is_dir()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True)
    assert status.stdout == ""
