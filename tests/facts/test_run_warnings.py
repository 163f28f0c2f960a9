import pytest

from efprof.artifacts.events import CollectorStopped
from efprof.facts.run_warnings import warnings_of
from tests.builders import make_steps, write_run


def test_a_whole_run_has_no_warning(tmp_path):
    assert warnings_of(write_run(tmp_path / "run", steps=make_steps(5))) == ()


def test_lines_lost_and_collectors_stopped_are_told(tmp_path):
    stopped = CollectorStopped(at_ns=0, step=3, collector="windows", reason="OSError: no space left")
    run = write_run(tmp_path / "run", steps=make_steps(5), events=[stopped])
    with (run.rank_folder / "steps.jsonl").open("a") as file:
        file.write('{"step"')
    torn, collector = warnings_of(run)
    assert torn.startswith("1 line of steps.jsonl")
    assert "'windows' stopped at step 3 (OSError: no space left)" in collector


@pytest.mark.parametrize("ended", ["running", "raised", "out_of_memory", "interrupted", "killed"])
def test_a_run_that_ended_badly_says_so(tmp_path, ended):
    assert len(warnings_of(write_run(tmp_path / "run", steps=make_steps(5), ended=ended))) == 1


def test_a_run_without_a_step_has_exactly_one_warning(tmp_path):
    (warning,) = warnings_of(write_run(tmp_path / "run", ended="killed"))
    assert "No training step was finished" in warning
