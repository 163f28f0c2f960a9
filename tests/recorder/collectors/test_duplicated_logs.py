"""Which log records are told to be written twice."""

import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efprof.artifacts.events import CollectorStopped, DuplicatedLog
from tests.recorder.recording import line_of, record_here
from tests.recorder.training import make_batch, make_training, train_step

NUM_STEPS = 5
STREAM = io.StringIO()


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """Names of their own, under a parent that passes nothing on to pytest's handlers."""
    names = ("program", "program.part", "library")
    logging.getLogger("program").propagate = False
    yield
    for name in names:
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def to_stream(stream: io.StringIO = STREAM) -> logging.Handler:
    return logging.StreamHandler(stream)


def train(logger: logging.Logger) -> None:
    model, optimizer = make_training()
    for step in range(NUM_STEPS):
        train_step(model, optimizer, *make_batch())
        logger.warning("step %d", step)  # logged


def set_up(logger: logging.Logger) -> None:
    logger.addHandler(to_stream())  # added again


def a_function_that_is_called_twice() -> None:
    logger = logging.getLogger("program")
    set_up(logger)
    set_up(logger)
    train(logger)


def a_child_that_passes_on() -> None:
    logging.getLogger("program").addHandler(to_stream())
    logger = logging.getLogger("program.part")
    logger.addHandler(to_stream())  # added to the child
    train(logger)


def one_handler_of_both() -> None:
    handler = to_stream()
    logging.getLogger("program").addHandler(handler)
    logger = logging.getLogger("program.part")
    logger.addHandler(handler)  # the same
    train(logger)


def one_stream_and_one_other() -> None:
    logger = logging.getLogger("program")
    logger.addHandler(to_stream())
    logger.addHandler(to_stream(io.StringIO()))
    train(logger)


def a_library_with_its_own() -> None:
    logging.getLogger("program").addHandler(to_stream())
    library = logging.getLogger("library")
    library.addHandler(to_stream())
    library.propagate = False
    train(library)


def one_that_takes_errors_alone() -> None:
    logger, errors = logging.getLogger("program"), to_stream()
    errors.setLevel(logging.ERROR)
    logger.addHandler(to_stream())
    logger.addHandler(errors)
    train(logger)


def one_that_filters() -> None:
    logger, other = logging.getLogger("program"), to_stream()
    other.addFilter(lambda _: False)
    logger.addHandler(to_stream())
    logger.addHandler(other)
    train(logger)


def told(folder: Path, program: Callable[[], None]) -> DuplicatedLog | None:
    recorded = record_here(folder, program)
    assert recorded.events(CollectorStopped) == []
    found = recorded.events(DuplicatedLog)
    return found[-1] if found else None


@pytest.mark.parametrize(
    ("program", "marker"),
    [
        (a_function_that_is_called_twice, "added again"),
        (a_child_that_passes_on, "added to the child"),
        (one_handler_of_both, "the same"),
    ],
)
def test_a_record_that_is_written_twice_is_told_with_its_line_and_those_that_added_the_handlers(
    tmp_path: Path, program: Callable[[], None], marker: str
) -> None:
    event, file = told(tmp_path, program), Path(__file__)
    assert event is not None
    assert (event.num_records, event.num_doubled) == (NUM_STEPS, NUM_STEPS)
    assert f":{line_of(file, marker)}:" in event.added[0]
    assert event.site is not None
    assert f":{line_of(file, 'logged')}:" in event.site


def test_two_handlers_of_one_file_are_told(tmp_path: Path) -> None:
    def program() -> None:
        logger = logging.getLogger("program")
        handlers = [logging.FileHandler(tmp_path / "log.txt") for _ in range(2)]
        for one in handlers:
            logger.addHandler(one)
        train(logger)
        for one in handlers:
            one.close()

    event = told(tmp_path / "run", program)
    assert event is not None
    assert event.num_doubled == NUM_STEPS


@pytest.mark.parametrize(
    "program", [one_stream_and_one_other, a_library_with_its_own, one_that_takes_errors_alone, one_that_filters]
)
def test_handlers_that_differ_are_not_told(tmp_path: Path, program: Callable[[], None]) -> None:
    event = told(tmp_path, program)
    assert event is not None
    assert (event.num_records, event.num_doubled) == (NUM_STEPS, 0)


def test_handlers_of_pytest_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    event = told(tmp_path, lambda: train(logging.getLogger("library")))
    assert len(caplog.records) == NUM_STEPS
    assert event is None or event.num_doubled == 0


def test_a_program_that_logs_nothing_has_no_event(tmp_path: Path) -> None:
    model, optimizer = make_training()
    assert told(tmp_path, lambda: train_step(model, optimizer, *make_batch())) is None
