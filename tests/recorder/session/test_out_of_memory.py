"""An error that memory ran out, or Ctrl-C: whether it ended the training, or another did; the recorder's part in it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

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
    endings = (KeyError, ValueError, KeyboardInterrupt, SystemExit)
    with pytest.raises(endings), efprof.record(windows="none", holders=False):
        train()
    recorded = Recorded(folder=only_run(home))
    messages, raised = [event.message for event in recorded.events(OutOfMemory)], recorded.events(TrainingRaised)
    assert {event.recorder_part for event in raised} == {"none"}
    return recorded.run.ended, messages, [event.error for event in raised]


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


class OwnError(Exception):
    pass


def fail_in_a_pass() -> None:
    train_plainly(3)
    torch.ones(2, requires_grad=True).exp().backward()


def fail_because_of_a_pass() -> None:
    try:
        fail_in_a_pass()
    except RuntimeError as error:
        raise OwnError from error


def fail_between_steps() -> None:
    train_plainly(3)
    torch.nn.Linear(3, 1)(torch.ones(2))


def fail_in_the_recorder() -> None:
    train_plainly(3)
    assert current.session is not None
    del current.session.loop.is_updating
    torch.nn.utils.clip_grad_norm_(torch.nn.Linear(3, 1).parameters(), 1.0)


PARTS: dict[str, tuple[Callable[[], None], str]] = {
    "torch raises it below a line of the program": (fail_between_steps, "apart"),
    "a function of ours stands between": (fail_in_a_pass, "possible"),
    "it came of such a one": (fail_because_of_a_pass, "possible"),
    "ours raised it": (fail_in_the_recorder, "certain"),
}


@pytest.mark.parametrize("which", PARTS)
def test_the_part_of_the_recorder_in_an_error_is_read_from_its_traceback(which: str, home: Path) -> None:
    train, part = PARTS[which]
    with pytest.raises((Exception, KeyboardInterrupt)), efprof.record(windows="none", holders=False):
        train()
    (raised,) = Recorded(folder=only_run(home)).events(TrainingRaised)
    assert raised.recorder_part == part


@pytest.mark.parametrize("end", ENDS)
def test_the_error_that_ended_the_run_is_told_and_none_that_was_handled_before(end: str, home: Path) -> None:
    train, expected = ENDS[end]
    assert recorded_end(home, train) == expected


@pytest.mark.parametrize("status", ["None", "0", "False", "3", "256", "-1", "0.0", "'no data'", "()"])
def test_the_code_of_a_status_is_what_python_makes_of_it(status: str) -> None:
    program = [sys.executable, "-I", "-S", "-c", f"raise SystemExit({status})"]
    code = subprocess.run(program, capture_output=True, check=False).returncode
    assert exit_code_of(eval(status)) == code


def test_what_a_library_says_of_a_device_counts_only_where_there_is_one(home: Path) -> None:
    def train() -> None:
        train_plainly(2)
        raise RuntimeError("see the FAQ on 'CUBLAS_STATUS_ALLOC_FAILED'")

    with pytest.raises(RuntimeError), efprof.record(windows="none", holders=False):
        train()
    recorded = Recorded(folder=only_run(home))
    assert recorded.run.ended == "raised"
    assert recorded.events(OutOfMemory) == []
