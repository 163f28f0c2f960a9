"""Starting a command and closing its run, for commands that need no torch."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import efprof
from efprof.artifacts.events import LoaderBuilt
from efprof.artifacts.run_file import read_run_file
from efprof.commands.record import holds_training
from tests.recorder.recording import EFPROF, Recorded, environment_of, only_run, record_command
from tests.recorder.training import evaluate, make_loader, make_model
from tests.support.waiting import MAX_WAIT_S


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def record_python(home: Path, program: str) -> Recorded:
    return record_command(home, [sys.executable, "-c", program])


def write_executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_program_that_never_trains_ends_as_finished_and_that_is_said(home: Path) -> None:
    recorded = record_python(home, "print('hello')")
    assert (recorded.exit_code, recorded.output, recorded.run.ended) == (0, "hello\n", "finished")
    assert not recorded.rank.exists()
    (line,) = recorded.our_lines
    assert "holds no training step" in line
    assert "call efprof.step() at the end of each step" in line, "where no optimizer shows them"


def test_a_run_that_only_evaluates_holds_no_training_and_one_that_failed_before_its_first_step_does(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFPROF_HOME", str(home))
    with efprof.record(windows="none") as evaluated:
        evaluate(make_model(), make_loader(8))
    assert Recorded(folder=evaluated.folder).events(LoaderBuilt)
    assert not holds_training(evaluated.folder)
    with pytest.raises(ValueError, match="no data"), efprof.record(windows="none") as failed:
        raise ValueError("no data")
    assert holds_training(failed.folder)


def test_the_exit_code_is_the_programs(home: Path) -> None:
    recorded = record_python(home, "raise SystemExit(200)")
    assert (recorded.exit_code, recorded.run.exit_code, recorded.run.ended) == (200, 200, "raised")


def test_a_missing_script_ends_as_python_ends_it(home: Path) -> None:
    recorded = record_command(home, [sys.executable, "missing.py"])
    assert (recorded.exit_code, recorded.run.ended, recorded.run.name) == (2, "raised", "missing")
    assert "can't open file" in recorded.errors
    assert recorded.our_lines == [
        f"efprof: {recorded.folder.name} holds no training step: the command ended with exit code 2; "
        "what it printed itself says why."
    ]


def test_a_shell_script_without_a_first_line_runs_as_in_a_shell(home: Path, tmp_path: Path) -> None:
    script = write_executable(tmp_path / "train.sh", 'echo "$@"\nexit 5\n')
    recorded = record_command(home, [str(script), "a b", "c"])
    assert (recorded.exit_code, recorded.output) == (5, "a b c\n")


def test_a_program_that_cannot_be_executed_closes_the_run(home: Path, tmp_path: Path) -> None:
    script = write_executable(tmp_path / "train", "#!/no/such/interpreter\n")
    recorded = record_command(home, [str(script)])
    assert (recorded.exit_code, recorded.run.ended) == (126, "raised")
    assert recorded.our_lines[0] == f"efprof: {script} cannot be started: No such file or directory"


def refuse(home: Path, *command: str) -> str:
    """What efprof says, in one line, of a command that it does not start."""
    done = subprocess.run(
        [*EFPROF, "record", *command], env=environment_of(home, {}), cwd=home.parent, capture_output=True, text=True
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["echo a"], "the program 'echo a' is not on PATH"),
        (["."], "the program '.' is not on PATH"),
    ],
    ids=["in quotes", "a folder"],
)
def test_what_is_no_program_is_answered_with_how_to_write_it(words: list[str], answer: str, home: Path) -> None:
    advice = "write the command after -- as you would run it, such as 'python train.py'."
    assert refuse(home, "--", *words) == f"efprof: {answer}; {advice}"
    assert not home.exists()


@pytest.mark.parametrize(
    ("option", "text", "answer"),
    [
        ("--trace-steps", "5", "is not 'default', 'none' or ranges of steps such as 20:25,500:503; "
                               "step 20 alone is 20:21."),
        ("--memory-steps", "7:5", "is not 'default', 'none' or ranges of steps such as 20:25,500:503; "
                                  "step 20 alone is 20:21."),
        ("--triggers", "slow-step,slow", "is not 'default', 'none' or some of "
                                         "slow-step,memory-peak,non-finite,signal."),
        ("--windows", "5:7", "is not 'default' or 'none'; name steps by --trace-steps 5:7,100:102."),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_it_may_be(option: str, text: str, answer: str, home: Path) -> None:
    assert refuse(home, option, text, "--", "true") == f"efprof: {option} {text!r} {answer}"
    assert not home.exists()


def test_a_python_file_given_as_a_program_is_answered_with_how_to_write_it(home: Path) -> None:
    (home.parent / "train.py").write_text("")
    assert "'./train.py' may not be executed; write the command" in refuse(home, "--", "./train.py")


def test_a_folder_that_cannot_be_made_is_an_error_before_the_program_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refuse(tmp_path / "file", "--", sys.executable, "-c", "open('started', 'w')")
    assert "cannot be made: Not a directory; set EFPROF_HOME" in line
    assert not (tmp_path / "started").exists()


def test_a_program_that_removes_the_run_folder_still_passes_its_exit_code_through(home: Path) -> None:
    home.mkdir()
    program = f"import shutil; shutil.rmtree({str(home)!r}); raise SystemExit(4)"
    done = subprocess.run(
        [*EFPROF, "record", "--", sys.executable, "-c", program],
        env=environment_of(home, {}), cwd=home.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_the_command_is_written_without_its_secrets(home: Path) -> None:
    recorded = record_command(home, [sys.executable, "-c", "pass", "--token=abcdefgh", "--lr", "0.1"])
    assert recorded.run.command[1:] == ["-c", "pass", "--token=<hidden>", "--lr", "0.1"]


def test_arguments_that_are_not_text_are_passed_on_and_recorded(home: Path) -> None:
    odd = os.fsdecode(b"\xff.csv")
    recorded = record_command(home, [sys.executable, "-c", "import os, sys; print(os.fsencode(sys.argv[1]))", odd])
    assert recorded.output == "b'\\xff.csv'\n"
    assert recorded.run.command[-1] == "\ufffd.csv"


def test_two_recordings_at_once_have_a_run_each(home: Path) -> None:
    command = [*EFPROF, "record", "--", sys.executable, "-c", "pass"]
    both = [subprocess.Popen(command, env=environment_of(home, {}), stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert len(list((home / "runs").iterdir())) == 2


WAITING = "import time; print('up', flush=True); any(time.sleep(0.01) for _ in iter(int, 1))"
"""In short sleeps: what Python does on a signal that comes just before a sleep begins is done when that is over."""


def start_waiting(home: Path, program: str = WAITING) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [*EFPROF, "record", "--", sys.executable, "-c", program],
        env=environment_of(home, {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_ctrl_c_reaches_the_program_and_the_run_is_interrupted(home: Path) -> None:
    process = start_waiting(home)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=MAX_WAIT_S)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in errors
    assert "efprof/" not in errors, "no traceback of ours"
    assert read_run_file(only_run(home)).ended == "interrupted"


@pytest.mark.parametrize(
    ("number", "ended"),
    [(signal.SIGHUP, "killed"), (signal.SIGINT, "interrupted")],
)
def test_a_signal_sent_to_us_alone_is_passed_on_and_the_run_closed(
    number: signal.Signals, ended: str, home: Path
) -> None:
    process = start_waiting(home)
    process.send_signal(number)
    process.communicate(timeout=MAX_WAIT_S)
    run = read_run_file(only_run(home))
    assert (process.returncode, run.exit_code, run.ended) == (128 + number, 128 + number, ended)


SLOW_TO_START = """
import subprocess, sys

class SlowToStart(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__(command, **options)
        if "up" in command:
            print("up", flush=True)
            sys.stdin.read(1)

subprocess.Popen = SlowToStart
from efprof.cli import main
sys.argv = ["efprof", "record", "--", sys.executable, "-c", "import time\\nwhile True: time.sleep(0.01)", "up"]
main()
"""


def test_a_signal_that_comes_while_the_command_is_being_started_is_passed_on(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_START],
        env=environment_of(home, {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGHUP)
    process.communicate("x", timeout=MAX_WAIT_S)
    assert process.returncode == 128 + signal.SIGHUP


COUNTING = """
import signal, time
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
print('up', flush=True)
while not count:
    time.sleep(0.01)
time.sleep(1)
print(count)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_reaches_the_program_once(number: signal.Signals, home: Path) -> None:
    process = start_waiting(home, COUNTING)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=MAX_WAIT_S)
    assert output == "1\n"
    assert read_run_file(only_run(home)).ended == "finished"


@pytest.mark.parametrize(("code", "ended"), [(1, "killed"), (0, "finished")])
def test_the_exit_code_that_answers_sigterm_says_whether_the_program_was_killed(
    code: int, ended: str, home: Path
) -> None:
    program = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); {WAITING}"
    process = start_waiting(home, program)
    process.terminate()
    process.communicate(timeout=MAX_WAIT_S)
    assert (process.returncode, read_run_file(only_run(home)).ended) == (code, ended)


def test_a_signal_ignored_before_stays_ignored_in_the_program(home: Path) -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    command = [*EFPROF, "record", "--", sys.executable, "-c", program]
    ignoring = f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv({command[0]!r}, {command!r})"
    done = subprocess.run(
        [sys.executable, "-c", ignoring], env=environment_of(home, {}), capture_output=True, text=True
    )
    assert done.stdout == "True\n"


def test_an_existing_sitecustomize_still_runs(home: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("print('the site is customized')")
    program = "import sys; print('sitecustomize' in sys.modules, any('efprof/recorder' in path for path in sys.path))"
    recorded = record_command(home, [sys.executable, "-c", program], environment={"PYTHONPATH": str(tmp_path / "site")})
    said = "the site is customized\n"
    assert recorded.output == f"{said}{said}True False\n", "by efprof's own Python, then by the program's"


def test_a_child_that_never_imports_torch_loads_the_start_up_hook_alone(home: Path) -> None:
    program = "import sys; print(*sorted(sys.modules))"
    bare = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    recorded = record_python(home, program)
    added = set(recorded.output.split()) - set(bare.stdout.split())
    assert added <= {"sitecustomize", "__future__"}
