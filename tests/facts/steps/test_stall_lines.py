"""Which lines stalled the step."""

from pathlib import Path

import pytest

from efprof.artifacts.steps import SiteCalls
from efprof.facts.overview.measurements import measurements_of
from efprof.facts.steps.step_times import stall_lines
from tests.support.builders import make_steps, write_run

SOURCE = "import gc\n\ndef train():\n    gc.collect()\n    torch.cuda.empty_cache()\n"


def stalls(step: int) -> list[SiteCalls]:
    """One collection of 10 ms in every other step, and two calls of 1 ms in each."""
    collected = [SiteCalls(site="train.py:4:train", call="gc.collect", count=1, us=10_000.0)] if step % 2 else []
    return [*collected, SiteCalls(site="train.py:5:train", call="torch.cuda.empty_cache", count=2, us=2000.0)]


def test_the_calls_of_a_line_are_averaged_over_the_steady_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=make_steps(43, stalls=stalls), sources={"train.py": SOURCE})
    lines = stall_lines(run)
    assert [(str(line.blame), line.blame.text, line.call) for line in lines] == [
        ("train.py:4", "gc.collect()", "gc.collect"),
        ("train.py:5", "torch.cuda.empty_cache()", "torch.cuda.empty_cache"),
    ]
    assert [line.count_per_step for line in lines] == [pytest.approx(0.5), pytest.approx(2.0)]
    assert [line.step_ms for line in lines] == [pytest.approx(5.0), pytest.approx(2.0)]
    assert measurements_of(run).stalls == lines


def test_a_run_in_which_nothing_stalls_has_none(tmp_path: Path) -> None:
    assert stall_lines(write_run(tmp_path / "run", steps=make_steps(10))) == ()
