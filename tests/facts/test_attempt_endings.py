"""What a report says of the attempts that it leaves out."""

from pathlib import Path

import msgspec

from efprof.artifacts.attempts import PROCESS_FILE, Process
from efprof.artifacts.events import EVENTS_FILE, Event, RecordingEnded, TrainingRaised
from efprof.artifacts.run_file import write_run_file
from efprof.artifacts.steps import STEPS_FILE
from efprof.facts.attempt_endings import describe_attempts
from efprof.facts.run import Run, open_run
from efprof.facts.run_warnings import warnings_of
from tests.builders import make_run_file, make_steps

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
        "This run started its training again; the report is about attempt 2: attempt 1 was ended by ValueError (boom) "
        "at step 3 in rank0, attempt 3 was ended by ImportError (boom) at step 0."
    )


def test_a_run_of_one_attempt_says_nothing(tmp_path: Path) -> None:
    write_run_file(tmp_path, make_run_file())
    write_rank(tmp_path / "rank0", 3, ENDED)
    assert describe_attempts(open_run(tmp_path)) == ""


def test_the_first_rank_that_raised_and_those_that_were_killed_are_told(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0", 7, raised("RuntimeError", at_ns=8, step=7), ENDED)
    write_rank(tmp_path / "rank1", 6)
    write_rank(tmp_path / "rank2", 7, raised("KeyError", at_ns=6, step=6, message=""), ENDED)
    sentence = describe_attempts(open_with_second_attempt(tmp_path))
    assert sentence.endswith(": attempt 1 was ended by KeyError at step 6 in rank2 and was killed at step 6 in rank1.")


def test_an_attempt_that_a_signal_ended_names_it(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0", 4, RecordingEnded(at_ns=1, step=4, signal="SIGTERM"))
    sentence = describe_attempts(open_with_second_attempt(tmp_path))
    assert sentence.startswith("This run started its training again; ")
    assert "attempt 1 was ended by SIGTERM at step 4." in sentence


def test_what_follows_a_training_that_ended_well_is_another_one(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0", 4, ENDED)
    assert describe_attempts(open_with_second_attempt(tmp_path)) == (
        "This run trained in one process after another; the report is about attempt 2: attempt 1 ended after 4 steps."
    )


def test_an_agents_workers_are_started_again_however_they_ended(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0", 4, ENDED)
    (tmp_path / "rank0" / PROCESS_FILE).write_bytes(msgspec.json.encode(Process(pid=1, group="7.0")))
    sentence = describe_attempts(open_with_second_attempt(tmp_path))
    assert sentence == (
        "This run started its training again; the report is about attempt 2: attempt 1 ended after 4 steps."
    )
