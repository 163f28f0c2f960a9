"""restarted_loader: fires on the line that starts a loader anew in each step, and then input_stall is silent."""

from pathlib import Path

import pytest

from efprof.artifacts.steps import SiteCalls, StepRecord
from efprof.audits.input_stall import input_stall
from efprof.audits.restarted_loader import restarted_loader
from efprof.facts.run.run import Run, open_run
from efprof.model import NotRecorded
from tests.support.builders import loader_built, make_step, write_run

RUNS = Path(__file__).parents[1] / "runs"
SOURCE = """\
def train(loader, model):
    for step in range(40):
        batch = next(iter(loader))
        model(batch).sum().backward()


train(DataLoader(data, num_workers=2), model)
"""
SITE = "train.py:3:train"


def restarting(step: int, every: int) -> StepRecord:
    record = make_step(step, data_ms=9.0, loader=1)
    if step % every == 0:
        started = SiteCalls(site=SITE, call="DataLoader.__iter__", count=1, us=8_000.0)
        ended = SiteCalls(site=SITE, call="DataLoader workers end", count=1, us=4_000.0)
        record.stalls = [started, ended]
    return record


def run_of(folder: Path, every: int, num_loaders: int = 2) -> Run:
    steps = [restarting(step, every) for step in range(40)]
    loaders = [loader_built(site="train.py:7:<module>", num_workers=2)]
    return write_run(folder, steps=steps, events=loaders * num_loaders, sources={"train.py": SOURCE})


def test_it_blames_the_line_that_makes_the_iterator_and_says_what_that_takes(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", every=1)
    (finding,) = restarted_loader(run).findings
    assert str(finding.blame) == "train.py:3"
    assert finding.message == "12.0 ms of each step (51 %) restart a `DataLoader`, at train.py:3."
    assert finding.gain.step_ms == pytest.approx(12.0)
    assert "its worker processes end and start again" in finding.why


def test_the_wait_for_each_first_batch_counts_where_it_is_this_loader_s(tmp_path: Path) -> None:
    def waiting(step: int) -> StepRecord:
        record = make_step(step, data_ms=9.0, loader=1)
        record.stalls = [SiteCalls(site=SITE, call="DataLoader.__iter__", count=1, us=100.0)]
        return record

    steps, loader = [waiting(step) for step in range(40)], loader_built(site="train.py:7:<module>")
    run = write_run(tmp_path / "run", steps=steps, events=[loader], sources={"train.py": SOURCE})
    (finding,) = restarted_loader(run).findings
    told = "9.00 ms of each step (38 %) restart a `DataLoader` and wait for its first batch, at train.py:3."
    assert finding.message == told
    assert finding.gain.step_ms == pytest.approx(9.0)
    assert finding.gain.explanation.startswith("at most ")


def test_input_stall_leaves_the_wait_to_it(tmp_path: Path) -> None:
    examination = input_stall(run_of(tmp_path / "run", every=1))
    assert examination.findings == ()
    assert examination.looked_at.endswith("a loader is restarted in each step")


def test_an_evaluation_now_and_then_that_stops_early_is_silent(tmp_path: Path) -> None:
    assert restarted_loader(run_of(tmp_path / "run", every=10)).findings == ()


def test_the_recorded_search_is_found_and_its_twin_is_silent() -> None:
    (finding,) = restarted_loader(open_run(RUNS / "restarted_loader-sick")).findings
    assert finding.blame.text.endswith("# fault")
    assert restarted_loader(open_run(RUNS / "restarted_loader-healthy")).findings == ()


def test_a_run_without_a_loader_has_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="no DataLoader was recorded"):
        restarted_loader(write_run(tmp_path / "run", steps=[make_step(step) for step in range(40)]))
