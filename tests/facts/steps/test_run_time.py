"""What the wall time of a run went to."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.events import RecordingCost
from efprof.artifacts.readings import LONG_STEPS_FILE, EvaluationRecord, LongStep, SampledStack
from efprof.facts.run.run import Run, open_run
from efprof.facts.steps.run_time import RunTime
from efprof.model import NotRecorded
from tests.support.builders import START_NS, make_step, write_run

STARTED = (datetime.fromtimestamp(START_NS / 1e9, UTC) - timedelta(seconds=3)).isoformat()
"""Three seconds before the first step; a step begins each second, and takes half of one."""
RUNS = Path(__file__).parents[2] / "runs"


def run_of(folder: Path, *records: tuple[str, msgspec.Struct], num_steps: int = 10, **fields: object) -> Run:
    steps = [make_step(step, other_ms=485.0, recorder_us=0.0) for step in range(num_steps)]
    seconds = {"windows": 1.0, "steps": 9.0}
    events = [RecordingCost(step=9, allowance_s=3.0, share=0.01, seconds=seconds, num_full_steps=1)]
    run = write_run(folder, steps=steps, events=events, **{"started": STARTED, "duration_s": 15.0, **fields})
    for name, record in records:
        with (run.rank_folder / name).open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
    return run


def long_step(start_s: float, seconds: float) -> tuple[str, LongStep]:
    started_ns = START_NS + round(start_s * 1e9)
    stacks = [SampledStack(("train.py:5:main",), None, seconds, 0.0)]
    return LONG_STEPS_FILE, LongStep(step=3, started_ns=started_ns, stacks=stacks)


def evaluation(start_s: float, seconds: float) -> tuple[str, EvaluationRecord]:
    record = EvaluationRecord(
        after_step=2,
        started_ns=START_NS + round(start_s * 1e9),
        total_us=seconds * 1e6,
        num_batches=7,
        site=None,
        memory=[],
        peak_bytes=0,
        is_peak_exact=False,
    )
    return "evaluations.jsonl", record


def seconds_of(run: Run) -> dict[str, float]:
    return {part: round(seconds, 3) for part, seconds in run.get(RunTime).seconds.items() if round(seconds, 3)}


def test_steps_what_is_between_them_and_what_is_around_them_add_up_to_the_duration(tmp_path: Path) -> None:
    found = seconds_of(run_of(tmp_path / "run"))
    assert found == {"start": 3.0, "usual steps": 5.0, "between epochs": 3.5, "recorder": 1.0, "other": 2.5}


def test_what_was_sampled_between_steps_is_long_and_an_evaluation_in_it_is_an_evaluation(tmp_path: Path) -> None:
    found = seconds_of(run_of(tmp_path / "run", long_step(2.5, 0.5), long_step(4.5, 0.5), evaluation(4.6, 0.4)))
    assert (found["long steps"], found["evaluation"], found["between epochs"]) == (0.6, 0.4, 2.5)


def test_a_step_three_times_as_long_as_the_median_is_long_though_nobody_sampled(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", num_steps=9)
    steps = [make_step(step, other_ms=485.0, recorder_us=0.0) for step in range(9)]
    steps.append(make_step(9, other_ms=1985.0, recorder_us=0.0))
    again = write_run(tmp_path / "again", steps=steps, started=STARTED, duration_s=15.0)
    assert "long steps" not in seconds_of(run)
    assert seconds_of(again)["long steps"] == 2.0


def test_what_goes_on_after_the_run_or_has_no_end_is_cut_or_ends_with_the_last_thing_seen(tmp_path: Path) -> None:
    assert sum(seconds_of(run_of(tmp_path / "cut", long_step(9.0, 99.0))).values()) == pytest.approx(15.0)
    assert sum(seconds_of(run_of(tmp_path / "killed", duration_s=None)).values()) == pytest.approx(12.5)


def test_a_training_that_was_started_again_has_none(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    (run.folder / "attempt1").mkdir()
    (run.rank_folder).rename(run.folder / "attempt1" / "rank0")
    (run.folder / "rank0").mkdir()
    with pytest.raises(NotRecorded, match="more than once"):
        open_run(run.folder).get(RunTime)


@pytest.mark.parametrize("folder", sorted(RUNS.glob("*-sick")), ids=lambda folder: folder.name)
def test_of_every_recorded_run_the_parts_are_its_duration(folder: Path) -> None:
    run = open_run(folder)
    assert run.run_file.duration_s is not None
    assert sum(run.get(RunTime).seconds.values()) == pytest.approx(run.run_file.duration_s)
    assert min(run.get(RunTime).seconds.values()) >= 0
