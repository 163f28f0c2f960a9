from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.events import ThreadsReady
from efprof.artifacts.readings import WORKER_SAMPLES_FILE, SampledLine, WorkerSamples
from efprof.audits.input_stall import _is_stalled, input_stall
from efprof.facts.input.input_waits import HANDOVER_MS, InputWaits
from efprof.facts.run.run import open_run
from efprof.model import CodeEdit, NothingToLookAt, NotRecorded, Snippet, ThinEvidence
from tests.support.builders import loader_built, make_steps, write_run
from tests.support.rating import severity_in

SOURCE = """\
from torch.utils.data import DataLoader


def main(workers):
    loader = DataLoader(data, batch_size=16)
    for batch in loader:
        train(batch)
"""


def counted(**fields):
    """Of a training with one thread, beside other programs that have half of two cores."""
    usual = {"cores": "0f3a [0, 1]", "num_cores": 2, "num_threads": 1, "site": None, "ready": 2.0, "waiting": 0.0}
    return ThreadsReady(step=40, **usual | {"children": 1.0, "busy": 1.0, "own": 0.5} | fields)


def examine(folder, *, steps=40, loader=None, num_cpus=8, source=SOURCE, counts=(), **fields):
    """A run whose step takes 14.5 ms besides its data."""
    run = write_run(
        folder,
        steps=make_steps(steps, **{"loader": 1, "cpu_us": 14_500.0, **fields}),
        events=[loader_built(**(loader or {})), *counts],
        sources={"train.py": source},
        num_cpus=num_cpus,
    )
    return input_stall(run)


def test_blames_the_loader_and_computes_its_workers(tmp_path):
    (finding,) = examine(tmp_path / "run", data_ms=40.0, cpu_us=54_500.0).findings
    assert str(finding.blame) == "train.py:5"
    assert severity_in(open_run(tmp_path / "run"), finding) == "high"
    assert finding.message == "Each step waits 40.0 ms for its data, 73 % of its time."
    assert finding.why == "The batches are made in the training process (`num_workers=0`)."
    assert finding.fix.summary == "Use `DataLoader(..., num_workers=3)`."
    (edit,) = finding.fix.changes
    assert isinstance(edit, CodeEdit)
    assert edit.new == "    loader = DataLoader(data, batch_size=16, num_workers=3)"
    assert finding.gain.step_ms == pytest.approx(40.0 - HANDOVER_MS)
    assert finding.gain.basis == "model"


def test_the_share_is_that_of_a_step_that_is_not_recorded_in_full(tmp_path):
    steps = make_steps(60, loader=1, cpu_us=34_500.0, data_ms=20.0, is_full=lambda step: step < 30)
    for step in steps[30:]:
        step.total_us -= 4_500.0
    run = write_run(tmp_path / "run", steps=steps, events=[loader_built()], sources={"train.py": SOURCE}, num_cpus=8)
    (finding,) = input_stall(run).findings
    assert finding.message == "Each step waits 20.0 ms for its data, 67 % of its time."


def test_a_worker_is_no_advice_where_it_would_take_more_from_the_training_than_it_wins():
    waits = InputWaits(
        loader=loader_built(num_workers=0),
        num_cpus=2,
        num_epochs=1,
        rest_ms=1.5,
        data_ms=2.3,
        data_interval_ms=(2.2, 2.4),
        fetch_ms=2.3,
        cpu_ms=3.9,
        num_restarts=0,
        restart_ms=0.0,
        threads=None,
    )
    assert not waits.can_win
    assert not waits.is_out_of_cores
    assert not _is_stalled(waits)
    assert replace(waits, num_cpus=16).can_win


def test_a_loader_that_keeps_up_and_short_waits_are_silent(tmp_path):
    examination = examine(tmp_path / "run", data_ms=1.2)
    assert examination.findings == ()
    assert examination.looked_at == "37 steps, which waited 7.6 % of their time for data"
    examination = examine(
        tmp_path / "second", data_ms=0.9, forward_ms=1.0, backward_ms=1.0, optimizer_ms=0.1, other_ms=0.1
    )
    assert examination.findings == ()
    assert examine(tmp_path / "third", data_ms=2.5, loader={"num_workers": 2}).findings == ()


def test_the_workers_are_computed_from_those_that_are_busy_and_by_the_mean_wait(tmp_path):
    loader = {"num_workers": 2}
    source = SOURCE.replace("batch_size=16", "batch_size=16, num_workers=2")
    (finding,) = examine(tmp_path / "run", data_ms=14.5, loader=loader, source=source, num_cpus=16).findings
    (edit,) = finding.fix.changes
    assert finding.fix.summary == "Use `DataLoader(..., num_workers=4)`."  # 2 workers x 29 ms, over 14.5 ms
    assert edit.new == "    loader = DataLoader(data, batch_size=16, num_workers=4)"
    assert finding.why == "2 data workers cannot make batches as fast as they are used."
    assert finding.gain.step_ms == pytest.approx(14.5 - HANDOVER_MS)
    loader = {"num_workers": 2}
    (finding,) = examine(tmp_path / "second", data_ms=lambda s: 30.0 if s % 2 == 0 else 0.5, loader=loader).findings
    assert "waits 14.9 ms" in finding.message


def test_the_cores_bound_the_workers(tmp_path):
    (finding,) = examine(tmp_path / "run", data_ms=80.0, cpu_us=94_500.0, num_cpus=4).findings
    assert finding.fix.summary == "Use `DataLoader(..., num_workers=3)`."


def test_a_machine_without_a_free_core_is_told_so_where_the_wait_is_longer_than_the_training(tmp_path):
    (finding,) = examine(tmp_path / "run", data_ms=14.5, cpu_us=58_000.0, num_cpus=2).findings
    assert (finding.fix.applicability, finding.fix.changes) == ("manual", ())
    assert "all 2 cores are busy, more workers will not help" in finding.fix.summary
    assert finding.gain.basis == "measured bound"
    assert examine(tmp_path / "second", data_ms=7.0, cpu_us=21_500.0, num_cpus=1).findings == ()


def test_waits_at_the_start_of_epochs_ask_for_workers_that_stay(tmp_path):
    loader = {"num_workers": 2, "num_batches": 20}
    examination = examine(tmp_path / "run", steps=100, loader=loader, data_ms=lambda s: 90.0 if s % 20 == 0 else 0.2)
    (finding,) = examination.findings
    assert finding.message.startswith("Starting data workers at each of 4 epochs costs 3.78 ms per step on average, ")
    assert "ends its workers with each epoch" in finding.why
    assert finding.fix.summary == "Use `DataLoader(..., persistent_workers=True)`."
    (edit,) = finding.fix.changes
    assert edit.new.endswith("persistent_workers=True)")
    assert finding.gain.step_ms == pytest.approx(4 * 89.8 / 95)


def test_the_waits_of_new_epochs_are_spread_over_the_light_steps_too(tmp_path):
    def examined(name, is_full):
        loader = {"num_workers": 2, "num_batches": 20}
        waits = {"data_ms": lambda step: 90.0 if step % 20 == 0 else 0.2, "is_full": is_full}
        (finding,) = examine(tmp_path / name, steps=100, loader=loader, **waits).findings
        return finding.gain.step_ms

    all_full = examined("full", lambda step: True)
    assert examined("light", lambda step: step < 70 or step % 20 == 0) == pytest.approx(all_full)


def test_waits_that_are_not_those_of_epochs_are_silent(tmp_path):
    loader = {"num_workers": 2, "num_batches": 20}
    examination = examine(
        tmp_path / "run", steps=100, loader=loader, data_ms=lambda s: 200.0 if s in (20, 33, 47) else 0.2
    )
    assert examination.findings == ()


@pytest.mark.parametrize(
    ("num_workers", "data_ms", "counts"),
    [
        (1, 40.0, counted(waiting=0.5, children_waiting=0.4)),  # alone it needs 32.7 ms for a batch, and trains for 9
        (1, 40.0, counted(waiting=0.9, children_waiting=0.9, busy=0.75, own=0.25)),  # others left a quarter over
        (1, 40.0, counted(waiting=0.9, children_waiting=0.9, own=0.95)),  # its own threads have the cores
        (0, 40.0, counted(waiting=0.5)),  # both parts of the step take longer
    ],
)
def test_a_wait_for_work_is_told_beside_other_programs_too(tmp_path, num_workers, data_ms, counts):
    loader = {"num_workers": num_workers}
    (finding,) = examine(tmp_path / "run", data_ms=data_ms, loader=loader, counts=[counts]).findings
    assert severity_in(open_run(tmp_path / "run"), finding) == "high"


@pytest.mark.parametrize(
    ("num_workers", "data_ms", "counts"),
    [
        (1, 40.0, counted(waiting=0.8, children_waiting=0.8)),  # of 54.5 ms it worked for 10.9
        (1, 4.0, counted(waiting=0.9)),  # of 18.5 ms the training worked for 1.9: alone it would wait for the worker
        (0, 40.0, counted(num_threads=2, waiting=0.5)),  # a fetch's threads may have waited for each other
    ],
)
def test_a_verdict_that_other_programs_may_have_decided_is_unclear(tmp_path, num_workers, data_ms, counts):
    with pytest.raises(ThinEvidence, match=r"^Unclear: .* but other programs held 50 % of the cores\.$"):
        examine(tmp_path / "run", data_ms=data_ms, loader={"num_workers": num_workers}, counts=[counts], num_cpus=2)


def test_a_run_without_a_loader_has_nothing_to_look_at_unless_it_waits_for_data(tmp_path):
    with pytest.raises(NothingToLookAt, match=r"^Needs a DataLoader\.$"):
        input_stall(write_run(tmp_path / "run", steps=make_steps(40, data_ms=0.0)))
    assert input_stall(write_run(tmp_path / "second", steps=make_steps(40, data_ms=0.5))).findings == ()


def test_a_loader_that_was_not_seen_being_built_and_a_run_without_steps_are_not_judged(tmp_path):
    with pytest.raises(ThinEvidence, match="could not be seen"):
        examine(tmp_path / "run", data_ms=40.0, loader={"loader": 7})
    with pytest.raises(NotRecorded):
        input_stall(write_run(tmp_path / "second"))


@given(
    num_workers=st.integers(0, 8),
    num_cpus=st.integers(2, 64),
    data_ms=st.floats(1, 1000),
    rest_ms=st.floats(1, 1000),
    cpu_share=st.floats(0.1, 4),
    wanted=st.integers(1, 63),
)
def test_no_prediction_is_more_than_the_wait(num_workers, num_cpus, data_ms, rest_ms, cpu_share, wanted):
    step_ms = data_ms + rest_ms
    waits = InputWaits(
        loader=loader_built(num_workers=num_workers),
        num_cpus=num_cpus,
        num_epochs=1,
        rest_ms=rest_ms,
        data_ms=data_ms,
        data_interval_ms=(data_ms * 0.9, data_ms * 1.1),
        fetch_ms=data_ms,
        cpu_ms=step_ms * min(cpu_share, num_cpus),
        num_restarts=0,
        restart_ms=0.0,
        threads=None,
    )
    workers = num_workers + wanted
    assert waits.saved_ms_with(workers) <= data_ms + 1e-9
    low, high = waits.saved_interval_ms_with(workers)
    assert 0 <= low <= high or waits.saved_ms_with(workers) < 0


def test_the_slowest_line_in_the_workers_is_named_and_the_loader_stays_to_blame(tmp_path):
    steps = make_steps(40, loader=1, cpu_us=14_500.0, data_ms=40.0)
    sources = {"train.py": SOURCE, "data.py": "def load(index):\n    return decode(index)\n"}
    run = write_run(tmp_path / "run", steps=steps, events=[loader_built(num_workers=2)], sources=sources)
    lines = [SampledLine("data.py:2:load", "PIL.Image.open", 80), SampledLine("data.py:1:load", None, 20)]
    samples = WorkerSamples(loader=1, pid=10, num_idle=3, lines=lines)
    (run.rank_folder / WORKER_SAMPLES_FILE).write_bytes(msgspec.json.encode(samples) + b"\n")
    (finding,) = input_stall(run).findings
    assert str(finding.blame) == "train.py:5"
    assert finding.why.endswith("of the workers' time goes to data.py:2 `return decode(index)`, inside PIL.Image.open.")
    assert finding.message.startswith("Each step waits 40.0 ms for its data")
    snippets = [one.file for one in finding.evidence if isinstance(one, Snippet)]
    assert snippets == ["data.py"]
