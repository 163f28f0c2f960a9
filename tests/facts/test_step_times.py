from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.steps import StageSpan
from efprof.facts.run import open_run
from efprof.facts.step_times import MAX_WARM_UP_STEPS, StepTimes, num_warm_up_steps
from efprof.model import STAGES, NotRecorded, ThinEvidence
from tests.builders import make_step, make_steps, write_run

RUNS = Path(__file__).parents[1] / "runs"


def test_steady_steps_leave_out_warm_up_and_windows(tmp_path):
    steps = make_steps(40, window=lambda step: "trace-1" if step in (10, 11) else None)
    times = write_run(tmp_path / "run", steps=steps).get(StepTimes)
    assert [time.step for time in times.steady] == [step for step in range(3, 40) if step not in (10, 11)]
    assert len(times.every) == 40


def test_spans_of_one_stage_add_up_and_other_is_the_rest(tmp_path):
    spans = [StageSpan("forward", 0, 3000), StageSpan("backward", 3000, 5000), StageSpan("forward", 5000, 6000)]
    step = make_step(0, spans=spans, total_us=10_000.0, recorder_us=0.0)
    times = write_run(tmp_path / "run", steps=[step]).get(StepTimes)
    stage_ms = dict(zip(STAGES, times.every[0].stage_ms, strict=True))
    assert stage_ms == {"data": 0, "forward": 4.0, "backward": 2.0, "optimizer": 0, "other": 4.0}


def test_the_recorder_s_own_time_is_no_part_of_other(tmp_path):
    steps = [make_step(0, other_ms=0.5, recorder_us=400.0), make_step(1, other_ms=0.5, recorder_us=600.0)]
    times = write_run(tmp_path / "run", steps=steps).get(StepTimes)
    assert [time.of("other") for time in times.every] == [pytest.approx(0.1), 0.0]
    assert [time.total_ms for time in times.every] == [15.5, 15.5]


def test_a_step_s_share_of_the_recorder_is_no_longer_than_what_is_not_marked(tmp_path):
    steps = [make_step(0, other_ms=0.5, recorder_us=400.0), make_step(1, other_ms=0.5, recorder_us=600.0)]
    times = write_run(tmp_path / "run", steps=steps).get(StepTimes)
    assert [time.recorder_ms for time in times.every] == [pytest.approx(0.4), pytest.approx(0.5)]


@pytest.mark.parametrize("folder", sorted(RUNS.iterdir()), ids=lambda folder: folder.name)
def test_stages_and_the_recorder_make_up_every_recorded_step(folder):
    every = [time for time in open_run(folder).get(StepTimes).every if time.record.is_full]
    assert every
    sums = [sum(time.stage_ms) + time.recorder_ms for time in every]
    assert sums == pytest.approx([time.total_ms for time in every])


def test_a_run_without_a_finished_step_is_not_recorded(tmp_path):
    with pytest.raises(NotRecorded, match="no finished step"):
        write_run(tmp_path / "run").get(StepTimes)


def test_too_few_steady_steps_are_thin_evidence(tmp_path):
    times = write_run(tmp_path / "run", steps=make_steps(6)).get(StepTimes)
    assert len(times.at_least(3)) == 3
    with pytest.raises(ThinEvidence, match="Only 3 steps"):
        times.at_least(4)


def test_a_torn_line_is_counted(tmp_path):
    run = write_run(tmp_path / "run", steps=make_steps(4))
    with (run.rank_folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "sta')
    times = run.get(StepTimes)
    assert (len(times.every), times.num_torn) == (4, 1)


@given(st.integers(0, 100_000))
def test_warm_up_never_takes_more_than_half_of_the_run(num_steps):
    dropped = num_warm_up_steps(num_steps)
    assert 0 <= dropped <= min(MAX_WARM_UP_STEPS, num_steps / 2)
    assert dropped >= 3 or num_steps < 6
