"""An error that memory ran out, or Ctrl-C: whether it ended the training, or something else did."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import efprof
from efprof.artifacts.events import OutOfMemory, TrainingRaised
from efprof.recorder.session import current
from efprof.recorder.session.endings import exit_code_of
from tests.recorder.recording import Recorded, only_run
from tests.recorder.training import train_plainly

MESSAGE = "this batch is too large"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "home"
    assert current.session is None


def recorded_end(home: Path, train: Callable[[], object]) -> tuple[str, list[str], list[str]]:
    """How this training ended, and what is told of it: the shortages by their messages, the errors by their names."""
    with pytest.raises((KeyError, ValueError, KeyboardInterrupt, SystemExit)), efprof.record(windows="none"):
        train()
    recorded = Recorded(folder=only_run(home))
    messages = [event.message for event in recorded.events(OutOfMemory)]
    return recorded.run.ended, messages, [event.error for event in recorded.events(TrainingRaised)]


def running_out(num_steps: int, end: Callable[[], object]) -> Callable[[], None]:
    """A training that, while it handles a shortage, trains on by `num_steps` and then calls `end`."""

    def train() -> None:
        train_plainly(3)
        try:
            raise MemoryError(MESSAGE)
        except MemoryError:
            train_plainly(num_steps)
            end()

    return train


def fail() -> None:
    raise KeyError("a bug")


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def fail_by_a_shortage() -> None:
    try:
        raise MemoryError(MESSAGE)
    except MemoryError as error:
        train_plainly(3)
        raise ValueError("half of it is too large, too") from error


def leave_after_ctrl_c() -> None:
    train_plainly(3)
    try:
        press_ctrl_c()
    except KeyboardInterrupt:
        sys.exit(7)


def leave() -> None:
    sys.exit(3)


ENDS: dict[str, tuple[Callable[[], None], tuple[str, list[str], list[str]]]] = {
    "an error in the handler of one": (running_out(1, fail), ("raised", [], ["KeyError"])),
    "an error raised from one": (fail_by_a_shortage, ("out_of_memory", [MESSAGE], ["ValueError"])),
    "an exit because of one": (running_out(0, leave), ("out_of_memory", [MESSAGE], ["MemoryError"])),
    "Ctrl-C in the handler of one": (running_out(0, press_ctrl_c), ("interrupted", [], ["KeyboardInterrupt"])),
    "an exit because of Ctrl-C": (leave_after_ctrl_c, ("interrupted", [], ["KeyboardInterrupt"])),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_error_that_ended_the_run_is_told_and_none_that_was_handled_before(end: str, home: Path) -> None:
    train, expected = ENDS[end]
    assert recorded_end(home, train) == expected


@pytest.mark.parametrize("status", ["None", "0", "False", "3", "256", "-1", "0.0", "'no data'", "()"])
def test_the_code_of_a_status_is_what_python_makes_of_it(status: str) -> None:
    program = [sys.executable, "-I", "-S", "-c", f"raise SystemExit({status})"]
    code = subprocess.run(program, capture_output=True, check=False).returncode
    assert exit_code_of(eval(status)) == code
