"""A trace whose steps wait for their loader blames the line that asks it for a batch."""

from pathlib import Path

import pytest

from efprof.audits.input_stall import input_stall
from tests.facts.time.traces import REAL, event, foreign_run, run_of, slower, step
from tests.support.rating import severity_in

WITH_WORKERS = "_MultiProcessingDataLoaderIter"


def test_the_line_that_asks_for_a_batch_is_blamed_and_the_idle_device_is_the_gain(tmp_path: Path) -> None:
    run = foreign_run(tmp_path, *slower(100, *step(0, 0), *step(1000, 1)))
    (finding,) = input_stall(run).findings
    assert (str(finding.blame), severity_in(run, finding)) == ("train.py:5", "high")
    assert finding.gain.step_ms == pytest.approx(30.0)
    assert "`num_workers=2` or more" in finding.fix.summary


def test_steps_of_which_a_few_wait_for_all_the_others_are_told_by_the_mean(tmp_path: Path) -> None:
    quick = [one for one in step(1000, 1) + step(2000, 2) if not str(one["name"]).startswith(("enumerate", "data.py"))]
    (finding,) = input_stall(foreign_run(tmp_path, *slower(100, *step(0, 0), *quick))).findings
    assert finding.message.startswith("A step spends 10.0 ms inside the loader on average (0.00 ms to 30.0 ms), ")
    assert finding.gain.step_ms == pytest.approx(10.0, rel=0.05)


def test_of_calls_within_each_other_the_innermost_one_that_asks_is_blamed(tmp_path: Path) -> None:
    around = [
        event("run.py(90): <module>", 0, 2000, "python_function"),
        event("run.py(80): go", 0, 2000, "python_function"),
    ]
    inside = [event("data.py(7): __getitem__", at + 20, 280, "python_function") for at in (0, 1000)]
    steps = slower(100, *around, *step(0, 0), *step(1000, 1), *inside)
    (finding,) = input_stall(foreign_run(tmp_path, *steps)).findings
    assert str(finding.blame) == "train.py:5"


def test_a_loader_that_has_workers_needs_more_of_them(tmp_path: Path) -> None:
    steps = slower(100, *step(0, 0, WITH_WORKERS), *step(1000, 1, WITH_WORKERS))
    (finding,) = input_stall(foreign_run(tmp_path, *steps)).findings
    assert "0 -> 2" not in finding.fix.summary


def test_a_trace_without_a_loader_is_not_blamed(tmp_path: Path) -> None:
    steps = [one for one in step() if not str(one["name"]).startswith("enumerate")]
    assert input_stall(foreign_run(tmp_path, *steps)).findings == ()


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/traces")
def test_the_real_loader_without_workers_is_blamed_and_with_four_of_them_is_not() -> None:
    (without,) = REAL.glob("kineto_tb__resnet50_num_workers_0*")
    run = run_of(without)
    (finding,) = input_stall(run).findings
    assert str(finding.blame) == "resnet50_profiler_api.py:42"
    assert severity_in(run, finding) == "high"
    (with_four,) = REAL.glob("kineto_tb__resnet50_num_workers_4*")
    assert input_stall(run_of(with_four)).findings == ()
