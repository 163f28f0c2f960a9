import io
import logging

import pytest

from energy_flow.logs import logging_through, set_up_logging
from energy_flow.training.progress import BatchProgress, Progress, ProgressLine

PROGRESS = Progress(
    elapsed_s=62,
    epoch=2,
    batch=3,
    batches_per_epoch=15,
    seconds_per_batch=0.25,
    loss=1.5,
    memory_bytes=3 * 2**30,
    remaining_s=3600,
)


class Terminal(io.StringIO):
    """A terminal of unknown width."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """What a person sees: the lines, with what was drawn over or erased gone."""
        lines = [""]
        text = self.getvalue()
        while text:
            if text.startswith("\r\x1b[K"):
                lines[-1], text = "", text[len("\r\x1b[K") :]
            elif text[0] == "\n":
                lines, text = [*lines, ""], text[1:]
            else:
                lines[-1], text = lines[-1] + text[0], text[1:]
        return lines


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _able_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_a_line_says_where_training_is() -> None:
    assert PROGRESS.text(200) == "1:02  epoch 2  batch 3/15  0.25 s/batch  loss 1.5000  3.0 GiB  1:00:00 left"


@pytest.mark.parametrize("width", range(90))
def test_a_line_fits_any_width_by_leaving_out_whole_parts(width: int) -> None:
    text = PROGRESS.text(width)
    assert len(text) <= width
    assert width < 5 or all(part in PROGRESS.text(200).split("  ") for part in text.split("  "))


def test_a_new_line_takes_the_place_of_the_old_one_and_clearing_leaves_nothing() -> None:
    terminal = Terminal()
    line = ProgressLine("auto", stream=terminal)
    for _ in range(2):
        line.draw(PROGRESS)
        assert ["batch 3/15" in text for text in terminal.screen()] == [True]
    line.clear()
    assert terminal.screen() == [""]


@pytest.mark.usefixtures("_package_logger")
def test_log_lines_stand_whole_above_the_line() -> None:
    terminal = Terminal()
    line = ProgressLine("auto", stream=terminal)
    logger = logging.getLogger("energy_flow")
    set_up_logging("info", stream=terminal)
    with logging_through(line, instead_of=terminal):
        logger.info("before anything is drawn")
        line.draw(PROGRESS)
        logger.info("while it is drawn")
    *above, last = terminal.screen()
    assert above == ["before anything is drawn", "while it is drawn"]
    assert last == PROGRESS.text(79)


def test_nothing_is_drawn_where_nobody_could_erase_it_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ProgressLine("auto", stream=io.StringIO()).is_due()
    monkeypatch.setenv("TERM", "dumb")
    assert not ProgressLine("auto", stream=Terminal()).is_due()
    assert ProgressLine("on", stream=io.StringIO()).is_due()
    assert not ProgressLine("off", stream=Terminal()).is_due()


def test_a_terminal_that_is_gone_ends_the_line_and_not_the_training() -> None:
    class Gone(Terminal):
        def flush(self) -> None:
            raise OSError(5, "Input/output error")

    line = ProgressLine("auto", stream=Gone())
    line.draw(PROGRESS)
    assert not line.is_due()


def _drawn(*, first_batch: int, num_batches: int, seconds: list[float]) -> str:
    clock, terminal = Clock(), Terminal()
    line = ProgressLine("auto", stream=terminal, clock=clock)
    progress = BatchProgress(line, first_batch=first_batch, num_batches=num_batches, batches_per_epoch=4, clock=clock)
    clock.now += 60  # which is of the run, and no batch's
    progress.start()
    for number, elapsed in enumerate(seconds):
        clock.now += elapsed
        progress.batch_done(loss=float(number) if number else None, memory_bytes=None)
    return terminal.screen()[-1]


def test_batches_are_counted_and_timed_within_their_epoch_from_where_a_run_goes_on() -> None:
    assert _drawn(first_batch=0, num_batches=10, seconds=[2.0] * 5) == (
        "1:10  epoch 2  batch 1/4  2 s/batch  loss 4.0000  0:10 left"
    )
    assert _drawn(first_batch=6, num_batches=10, seconds=[2.0]) == "1:02  epoch 2  batch 3/4  2 s/batch  0:06 left"
