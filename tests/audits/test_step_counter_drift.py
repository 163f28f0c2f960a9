"""step_counter_drift: fires on the line that moves the schedule on with each batch, and says when it really ends."""

from pathlib import Path

import pytest

from efprof.artifacts.events import ScheduleMoves, StepCounter
from efprof.audits.step_counter_drift import step_counter_drift
from efprof.facts.run.run import Run
from efprof.model import Finding, NothingToLookAt
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model, optimizer, scheduler):
    for number, batch in enumerate(loader):
        model(batch).backward()
        scheduler.step()  # with each
        if number % 4 == 3:
            optimizer.step()
"""
NUM_STEPS = 40


def moves(num_updates: int = 10, num_drifting: int = 10, **fields: object) -> ScheduleMoves:
    defaults = {
        "at_ns": START_NS,
        "step": 0,
        "number": 0,
        "schedule": "CosineAnnealingLR",
        "site": "train.py:4:train",
        "length": 1000,
        "length_name": "T_max",
        "num_moves": 4 * num_updates,
    }
    return ScheduleMoves(num_updates=num_updates, num_drifting=num_drifting, **{**defaults, **fields})  # type: ignore[arg-type]


def run_of(folder: Path, *events: ScheduleMoves, ended: str = "finished") -> Run:
    return write_run(
        folder / "run",
        ended=ended,
        steps=make_steps(NUM_STEPS),
        events=events,
        sources={"train.py": TRAIN},
    )


def finding_of(run: Run) -> Finding:
    (finding,) = step_counter_drift(run).findings
    return finding


def test_it_blames_the_line_that_moves_the_schedule_on_and_says_when_that_ends(tmp_path: Path) -> None:
    finding = finding_of(run_of(tmp_path, moves(5, 5), moves()))
    assert (str(finding.blame), finding.severity) == ("train.py:4", "medium")
    assert finding.message == "CosineAnnealingLR moves on 4 times in each update; T_max=1,000 ends after 250 updates."
    assert finding.fix.summary.startswith("Move `scheduler.step()` to where the optimizer steps")


def test_where_the_length_is_not_known_it_says_how_often_the_schedule_moves(tmp_path: Path) -> None:
    event = moves(length=None, length_name="", schedule="StepLR")
    assert finding_of(run_of(tmp_path, event)).message == "StepLR moves on 4 times in each update."


def test_two_schedules_of_one_line_are_one_finding(tmp_path: Path) -> None:
    finding_of(run_of(tmp_path, moves(), moves(number=1)))


@pytest.mark.parametrize("counts", [(4, 4), (10, 7), (10, 0)], ids=["few updates", "now and then", "never"])
def test_it_is_silent_unless_a_schedule_runs_ahead_in_most_of_five_updates(
    counts: tuple[int, int], tmp_path: Path
) -> None:
    assert step_counter_drift(run_of(tmp_path, moves(*counts))).findings == ()


@pytest.mark.parametrize(
    ("length", "ended", "is_told"),
    [(4 * NUM_STEPS, "finished", False), (4 * NUM_STEPS, "interrupted", True), (NUM_STEPS, "finished", True)],
    ids=["counts batches", "was broken off", "counts updates"],
)
def test_one_that_ends_with_the_training_counts_batches(length: int, ended: str, is_told: bool, tmp_path: Path) -> None:
    examination = step_counter_drift(run_of(tmp_path, moves(length=length), ended=ended))
    assert bool(examination.findings) == is_told


@pytest.mark.parametrize("events", [[], [moves(0, 0)]], ids=["none", "none between updates"])
def test_a_run_without_a_schedule_is_not_judged(events: list[ScheduleMoves], tmp_path: Path) -> None:
    with pytest.raises(NothingToLookAt, match="schedule"):
        step_counter_drift(run_of(tmp_path, *events))


COUNTER = """\
WARM_UP = 240

def train(model, optimizer):
    global_step = 0
    for batch in loader:
        for row in batch:
            global_step += 1
        optimizer.step()
        if global_step < WARM_UP:
            print(global_step)
"""


def test_a_counter_that_runs_ahead_is_told_with_when_its_limit_is_reached(tmp_path: Path) -> None:
    event = StepCounter(
        at_ns=START_NS, step=20, site="train.py:3:train", name="global_step", by=12, num_updates=18, num_alike=18
    )
    run = write_run(tmp_path / "run", steps=make_steps(NUM_STEPS), events=[event], sources={"train.py": COUNTER})
    finding = finding_of(run)
    assert (str(finding.blame), finding.severity) == ("train.py:7", "low")
    assert finding.message == "`global_step` grows by 12 with each update, 18 of 18 seen."
    assert finding.why == "train.py:9 reaches 240 after 20 updates."


def test_a_counter_that_is_raised_at_two_lines_is_left_alone(tmp_path: Path) -> None:
    event = StepCounter(at_ns=START_NS, step=20, site="a", name="global_step", by=12, num_updates=18, num_alike=18)
    twice = COUNTER.replace("print(global_step)", "global_step += 1")
    run = write_run(tmp_path / "run", steps=make_steps(NUM_STEPS), events=[event], sources={"train.py": twice})
    with pytest.raises(NothingToLookAt):
        step_counter_drift(run)
