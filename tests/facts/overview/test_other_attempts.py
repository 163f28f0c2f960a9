"""What a report says of the attempts that it leaves out."""

from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.events import EVENTS_FILE, Event, RecordingEnded, TrainingRaised
from efprof.artifacts.run_file import write_run_file
from efprof.artifacts.steps import STEPS_FILE
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import Run, open_run
from tests.support.builders import make_run_file, make_steps

ENDED = RecordingEnded(at_ns=9, step=3)


def raised(error: str, *, at_ns: int = 5, step: int = 3, message: str = "boom") -> TrainingRaised:
    return TrainingRaised(at_ns=at_ns, step=step, error=error, message=message, stage=None, sites=[])


def write_rank(rank: Path, num_steps: int, *events: Event) -> None:
    rank.mkdir(parents=True)
    lines = [msgspec.json.encode(step) + b"\n" for step in make_steps(num_steps)]
    (rank / STEPS_FILE).write_bytes(b"".join(lines))
    (rank / EVENTS_FILE).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def open_with_second_attempt(run: Path) -> Run:
    write_rank(run / "attempt1" / "rank0", 5, ENDED)
    write_run_file(run, make_run_file())
    return open_run(run)


def test_the_run_is_its_last_attempt_that_finished_a_step(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0", 3, raised("ValueError"), ENDED)
    write_rank(tmp_path / "rank1", 3, ENDED)
    write_rank(tmp_path / "attempt2" / "rank0", 0, raised("ImportError", step=0))
    write_rank(tmp_path / "attempt10" / "rank0", 0)
    run = open_with_second_attempt(tmp_path)
    assert run.rank_folder == tmp_path / "attempt1" / "rank0"
    assert len(run.rank_folders) == 1
    (warning,) = warnings_of(run)
    assert warning == (
        "This run trained in one process after another; the report is about attempt 2: attempt 1 was ended by "
        "ValueError at step 3, attempt 3 was ended by ImportError at step 0."
    )


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([(4, ENDED)], "came to its end"),
        ([(7, ENDED), (6,)], "was killed"),
        ([(4, RecordingEnded(at_ns=1, step=4, signal="SIGTERM"))], "was ended by SIGTERM"),
        (
            [(7, raised("RuntimeError", at_ns=8, step=7), ENDED), (6,), (7, raised("KeyError", step=6, message=""))],
            "was ended by KeyError at step 6",  # of the rank that raised first
        ),
    ],
)
def test_how_an_attempt_ended_is_told_by_its_ranks(
    ranks: list[tuple[int, *tuple[Event, ...]]], told: str, tmp_path: Path
) -> None:
    for number, (num_steps, *events) in enumerate(ranks):
        write_rank(tmp_path / f"rank{number}", num_steps, *events)
    assert warnings_of(open_with_second_attempt(tmp_path)) == (
        f"This run trained in one process after another; the report is about attempt 2: attempt 1 {told}.",
    )
