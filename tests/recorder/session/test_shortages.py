"""A shortage of memory, or Ctrl-C: whether it ended the training, or that went on and ended by something else."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import efprof
from efprof.artifacts.events import OutOfMemory, TrainingRaised
from efprof.recorder.session import current
from tests.recorder.recording import Recorded, only_run
from tests.recorder.training import train_plainly

SHORTAGE = "this batch is too large"


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
    shortages = [event.message for event in recorded.events(OutOfMemory)]
    return recorded.run.ended, shortages, [event.error for event in recorded.events(TrainingRaised)]


def running_out(num_steps: int, end: Callable[[], object]) -> Callable[[], None]:
    """A training that, while it handles a shortage, trains on by `num_steps` and then calls `end`."""

    def train() -> None:
        train_plainly(3)
        try:
            raise MemoryError(SHORTAGE)
        except MemoryError:
            train_plainly(num_steps)
            end()

    return train


def fail() -> None:
    raise KeyError("a bug")


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def test_an_error_in_the_handler_of_a_shortage_came_of_the_shortage(home: Path) -> None:
    assert recorded_end(home, running_out(0, fail)) == ("out_of_memory", [SHORTAGE], ["KeyError"])


@pytest.mark.parametrize("num_steps", [1, 80])  # of many, the last ones are not seen one by one
def test_a_shortage_after_which_the_program_trained_on_is_not_how_it_ended(num_steps: int, home: Path) -> None:
    assert recorded_end(home, running_out(num_steps, fail)) == ("raised", [], ["KeyError"])


@pytest.mark.parametrize("num_steps", [0, 1])
def test_ctrl_c_is_no_shortage_though_one_is_being_handled(num_steps: int, home: Path) -> None:
    assert recorded_end(home, running_out(num_steps, press_ctrl_c)) == ("interrupted", [], ["KeyboardInterrupt"])


def test_a_shortage_that_the_error_names_as_its_cause_counts_whatever_came_between(home: Path) -> None:
    def train() -> None:
        try:
            raise MemoryError(SHORTAGE)
        except MemoryError as error:
            train_plainly(3)
            raise ValueError("half of it is too large, too") from error

    assert recorded_end(home, train) == ("out_of_memory", [SHORTAGE], ["ValueError"])


def test_a_shortage_after_one_that_was_survived_counts(home: Path) -> None:
    def train() -> None:
        running_out(3, lambda: None)()
        running_out(0, fail)()

    assert recorded_end(home, train) == ("out_of_memory", [SHORTAGE], ["KeyError"])


def test_an_exit_in_the_handler_of_a_shortage_that_was_survived_is_told_with_no_error(home: Path) -> None:
    assert recorded_end(home, running_out(3, lambda: sys.exit(3))) == ("raised", [], [])


def test_an_exit_because_of_a_shortage_is_told_with_it(home: Path) -> None:
    assert recorded_end(home, running_out(0, lambda: sys.exit(3))) == ("out_of_memory", [SHORTAGE], ["MemoryError"])


@pytest.mark.parametrize(
    ("num_steps", "end"), [(0, ("interrupted", [], ["KeyboardInterrupt"])), (3, ("raised", [], []))]
)
def test_an_exit_in_the_handler_of_ctrl_c_came_of_it_unless_the_program_trained_on(
    num_steps: int, end: tuple[str, list[str], list[str]], home: Path
) -> None:
    def train() -> None:
        train_plainly(3)
        try:
            press_ctrl_c()
        except KeyboardInterrupt:
            train_plainly(num_steps)
            sys.exit(7)

    assert recorded_end(home, train) == end
