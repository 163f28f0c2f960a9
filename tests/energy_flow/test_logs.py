import io
import logging

import pytest

from energy_flow.logs import (
    LEVELS,
    Every,
    EverySeconds,
    FirstSteps,
    logging_through,
    set_up_logging,
)

pytestmark = pytest.mark.usefixtures("_package_logger")
LOGGER = logging.getLogger("energy_flow.training.somewhere")


def _said(level_name: str, *, rank: int = 0) -> list[str]:
    stream = io.StringIO()
    set_up_logging(level_name, rank=rank, stream=stream)
    for name, level in LEVELS.items():
        LOGGER.log(level, "at %s", name)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("level_name", "said"),
    [
        ("profiling", ["at profiling", "at performance", "at training", "at info", "warning: at warning"]),
        ("performance", ["at performance", "at training", "at info", "warning: at warning"]),
        ("training", ["at training", "at info", "warning: at warning"]),
        ("info", ["at info", "warning: at warning"]),
        ("warning", ["warning: at warning"]),
    ],
)
def test_the_first_rank_says_what_its_level_lets_through(level_name: str, said: list[str]) -> None:
    assert _said(level_name) == said


@pytest.mark.parametrize("level_name", list(LEVELS))
def test_another_rank_says_only_warnings_and_its_number(level_name: str) -> None:
    assert _said(level_name, rank=3) == ["rank 3: warning: at warning"]


def test_within_a_progress_line_logs_for_its_stream_go_through_it() -> None:
    stream, line = io.StringIO(), io.StringIO()
    set_up_logging("info", stream=stream)
    with logging_through(line, instead_of=stream):
        LOGGER.info("within")
    LOGGER.info("after")
    assert (line.getvalue(), stream.getvalue()) == ("within\n", "after\n")
    stream, terminal = io.StringIO(), io.StringIO()
    set_up_logging("info", stream=stream)
    with logging_through(io.StringIO(), instead_of=terminal):
        LOGGER.info("within")
    assert stream.getvalue() == "within\n"


def test_every_few_steps_or_seconds_and_the_first_steps_are_due() -> None:
    every = Every(3)
    assert [step for step in (5, 6, 7, 8, 9, 20, 22, 23) if every.is_due(step)] == [5, 8, 20, 23]
    times = iter([100.0, 101.0, 109.9, 110.0, 111.0])
    every = EverySeconds(10, clock=lambda: next(times))
    assert [every.is_due() for _ in range(5)] == [True, False, False, True, False]
    assert [step for step in range(1, 6) if FirstSteps(2).is_due(step)] == [1, 2]
    assert [step for step in range(11, 16) if FirstSteps(2, first_step=10).is_due(step)] == [11, 12]
