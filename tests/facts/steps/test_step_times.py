from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.steps import SiteCalls, StageSpan
from efprof.facts.overview.measurements import measurements_of
from efprof.facts.run.run import open_run
from efprof.facts.steps.step_times import (
    NUM_RESAMPLES,
    StepTimes,
    median_interval,
    resample,
    stall_lines,
    within_idle,
)
from efprof.model import STAGES, Gain, NotRecorded, ThinEvidence
from tests.support.builders import make_busy_step, make_step, make_steps, on_device, write_run

RUNS = Path(__file__).parents[2] / "runs"


def test_steady_steps_leave_out_warm_up_and_windows(tmp_path):
    steps = make_steps(40, window=lambda step: "trace-1" if step in (10, 11) else None)
    times = write_run(tmp_path / "run", steps=steps).get(StepTimes)
    assert [time.step for time in times.steady] == [step for step in range(3, 40) if step not in (10, 11)]
    assert len(times.every) == 40


@pytest.mark.parametrize(("num_light", "median_ms"), [(20, 15.5), (19, 17.5)])
def test_the_usual_step_is_one_of_the_light_ones_where_there_are_twenty(tmp_path, num_light, median_ms):
    steps = make_steps(60, is_full=lambda step: step < 60 - num_light)
    for step in steps:
        step.recorder_us, step.total_us = (2000.0, step.total_us + 2000.0) if step.is_full else (0.0, step.total_us)
    times = write_run(tmp_path / "run", steps=steps).get(StepTimes)
    assert times.median_ms() == pytest.approx(median_ms)
    assert len(times.steady_ms) == (20 if num_light == 20 else 57)
    assert times.own_ms == pytest.approx([15.5] * 57)
    assert len(times.steady) == 57 - num_light


def test_spans_of_one_stage_add_up_and_other_is_the_rest(tmp_path):
    spans = [StageSpan("forward", 0, 3000), StageSpan("backward", 3000, 5000), StageSpan("forward", 5000, 6000)]
    step = make_step(0, spans=spans, total_us=10_000.0, recorder_us=0.0)
    times = write_run(tmp_path / "run", steps=[step]).get(StepTimes)
    stage_ms = dict(zip(STAGES, times.every[0].stage_ms, strict=True))
    assert stage_ms == {"data": 0, "forward": 4.0, "backward": 2.0, "optimizer": 0, "other": 4.0}


def test_the_recorder_s_own_time_is_no_part_of_other_and_no_longer_than_what_is_not_marked(tmp_path):
    steps = [make_step(0, other_ms=0.5, recorder_us=400.0), make_step(1, other_ms=0.5, recorder_us=600.0)]
    times = write_run(tmp_path / "run", steps=steps).get(StepTimes)
    assert [time.of("other") for time in times.every] == [pytest.approx(0.1), 0.0]
    assert [time.total_ms for time in times.every] == [15.5, 15.5]
    assert [time.recorder_ms for time in times.every] == [pytest.approx(0.4), pytest.approx(0.5)]


@pytest.mark.parametrize("folder", sorted(RUNS.iterdir()), ids=lambda folder: folder.name)
def test_stages_and_the_recorder_make_up_every_recorded_step(folder):
    every = [time for time in open_run(folder).get(StepTimes).every if time.record.is_full]
    assert every
    sums = [sum(time.stage_ms) + time.recorder_ms for time in every]
    assert sums == pytest.approx([time.total_ms for time in every])


def test_without_finished_steps_there_are_no_times_and_few_are_thin_evidence(tmp_path):
    with pytest.raises(NotRecorded, match="no finished step"):
        write_run(tmp_path / "run").get(StepTimes)
    times = write_run(tmp_path / "second", steps=make_steps(6)).get(StepTimes)
    assert len(times.at_least(3)) == 3
    with pytest.raises(ThinEvidence, match="Only 3 steps"):
        times.at_least(4)
    run = write_run(tmp_path / "third", steps=make_steps(4))
    with (run.rank_folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "sta')
    times = run.get(StepTimes)
    assert (len(times.every), run.read_steps[1]) == (4, 1)


def time_of(folder, step):
    return write_run(folder, steps=[step]).get(StepTimes).every[0]


def test_a_device_is_idle_until_the_host_gives_it_work_and_no_longer(tmp_path):
    host = {"data_ms": 10.0, "forward_ms": 2.0, "backward_ms": 3.0, "optimizer_ms": 1.0, "other_ms": 34.0}
    step = on_device(make_step(0, recorder_us=0.0, **host), 0.0, 20.0, 29.5, 0.5, total_ms=50.0)
    time = time_of(tmp_path / "run", step)
    assert time.device_ms == pytest.approx((0.0, 20.0, 29.5, 0.5, 0.0))
    assert time.idle_ms == pytest.approx((0.0, 2.0, 0.0, 0.0, 0.0))
    step = on_device(make_step(0, recorder_us=0.0, data_ms=10.0), 7.0, 4.0, 8.0, 2.0, total_ms=21.5)
    time = time_of(tmp_path / "second", step)
    assert time.data_wait_ms == pytest.approx(7.0), "three were left of what it had to do"
    assert time.device_ms[-1] == time.idle_ms[-1] == pytest.approx(0.5)


@given(
    behind=st.integers(0, 50),
    parts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=8, max_size=8),
)
def test_a_device_is_never_idle_for_longer_than_is_said(behind, parts, tmp_path_factory):
    """Four stages, each with a gap after it; in each part so much work is queued, when it begins or as it ends."""
    now, free, idle, marks = 0, behind, 0, [(0, behind)]

    def queue(work):
        nonlocal free, idle
        idle, free = idle + max(0, now - free), max(now, free) + work

    for host, work, is_at_end in parts:
        queue(0 if is_at_end else work)
        now += host
        queue(work if is_at_end else 0)
        marks.append((now, max(now, free)))
    spans = [
        StageSpan(stage, *(float(marks[place][0]) for place in (2 * number, 2 * number + 1)))
        for number, stage in enumerate(("data", "forward", "backward", "optimizer"))
    ]
    device = [(marks[2 * number + 1][1] - marks[2 * number][1]) / 1000 for number in range(4)]
    step = make_step(0, spans=spans, total_us=float(now), recorder_us=0.0)
    on_device(step, *device, total_ms=(marks[-1][1] - marks[0][1]) / 1000)
    time = time_of(tmp_path_factory.mktemp("run") / "run", step)
    assert sum(time.device_ms) == pytest.approx((marks[-1][1] - marks[0][1]) / 1000)
    assert idle / 1000 - 1e-9 <= sum(time.idle_ms) <= now / 1000 + 1e-9


def test_a_gain_is_no_more_than_the_device_was_idle_where_its_times_are_known(tmp_path):
    run = write_run(tmp_path / "run", steps=[make_busy_step(number) for number in range(20)])
    gain = Gain(basis="measured bound", explanation="all of it", step_ms=3.0, step_ms_interval=(0.1, 4.0))
    within = within_idle(run, gain)
    assert within.step_ms == pytest.approx(0.2)
    assert within.step_ms_interval == pytest.approx((0.1, 0.2))
    assert within.explanation == "all of it; at most what the device was idle, 200 us"
    gain = Gain(basis="measured bound", explanation="all of it", step_ms=3.0)
    assert within_idle(write_run(tmp_path / "second", steps=make_steps(20)), gain) is gain
    run = write_run(tmp_path / "third", steps=make_steps(20), memory_source="CUDA allocator")
    within = within_idle(run, Gain(basis="measured bound", explanation="all of it", step_ms=3.0))
    assert (within.step_ms, within.step_ms_interval) == (3.0, (0.0, 3.0))
    assert within.explanation == "all of it; how much of it the device was busy is not known"


# Intervals by resampling.


def test_the_same_samples_give_the_same_interval_and_resamples_keep_neighbours_together():
    samples = list(np.random.default_rng(1).normal(10, 1, 50))
    assert median_interval(samples) == median_interval(samples)
    resampled = resample(range(64), np.random.default_rng(0))
    assert resampled.shape == (NUM_RESAMPLES, 64)
    followers = (resampled[:, 1:] - resampled[:, :-1]) % 64 == 1
    assert followers.mean() > 0.7  # blocks of four: three of four steps are followed by their neighbour


# Which lines stalled the step.

SOURCE = "import gc\n\ndef train():\n    gc.collect()\n    torch.cuda.empty_cache()\n"


def stalls(step):
    """One collection of 10 ms in every other step, and two calls of 1 ms in each."""
    collected = [SiteCalls(site="train.py:4:train", call="gc.collect", count=1, us=10_000.0)] if step % 2 else []
    return [*collected, SiteCalls(site="train.py:5:train", call="torch.cuda.empty_cache", count=2, us=2000.0)]


def test_the_calls_of_a_line_are_averaged_over_the_steady_steps(tmp_path):
    run = write_run(tmp_path / "run", steps=make_steps(43, stalls=stalls), sources={"train.py": SOURCE})
    lines = stall_lines(run)
    assert [(str(line.blame), line.blame.text, line.call) for line in lines] == [
        ("train.py:4", "gc.collect()", "gc.collect"),
        ("train.py:5", "torch.cuda.empty_cache()", "torch.cuda.empty_cache"),
    ]
    assert [line.count_per_step for line in lines] == [pytest.approx(0.5), pytest.approx(2.0)]
    assert [line.step_ms for line in lines] == [pytest.approx(5.0), pytest.approx(2.0)]
    assert measurements_of(run).stalls == lines
    assert stall_lines(write_run(tmp_path / "second", steps=make_steps(10))) == ()
