"""cache_flush_in_loop: fires on the line that empties the cache in every step, on a device only."""

from collections.abc import Callable
from pathlib import Path

import pytest

from efprof.artifacts.foreign import as_run
from efprof.artifacts.steps import SiteCalls, StepRecord
from efprof.audits.cache_flush_in_loop import cache_flush_in_loop
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.run.run import Run, open_run
from efprof.model import CodeEdit, Examination, NothingToLookAt, NotRecorded
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import OUTPUT, Program
from tests.support.builders import GPU, make_busy_step, make_step, write_run, write_snapshot
from tests.support.rating import severity_in

TRAIN = """\
def train(model, optimizer):
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()
"""
FLUSH = "train.py:6:train"


def flushing() -> Program:
    """Two batches, after each of which the cache is emptied: the second finds nothing left of the first."""
    program = Program(AllocatorSettings())
    for _ in range(3):
        program.free(program.at(OUTPUT).malloc(40 * MIB))
        program.empty_cache()
    return program


def run_of(
    folder: Path,
    *,
    every: int = 1,
    text: str = TRAIN,
    source: str = "CUDA caching allocator",
    make: Callable[[int], StepRecord] = make_step,
) -> Run:
    steps = []
    for number in range(40):
        step = make(number)
        if number % every == 0:
            step.stalls = [SiteCalls(site=FLUSH, call="torch.cuda.empty_cache", count=1, us=3_000.0)]
        steps.append(step)
    return write_run(
        folder, steps=steps, sources={"train.py": text}, snapshots=[flushing().snapshot()], devices=[GPU],
        memory_source=source,
    )  # fmt: skip


def test_it_blames_the_call_deletes_it_and_counts_what_each_flush_gave_back(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    (finding,) = cache_flush_in_loop(run).findings
    assert str(finding.blame) == "train.py:6"
    assert finding.gain.step_ms == pytest.approx(3.0)
    assert finding.fix.changes == (CodeEdit(file="train.py", line=6, old="        torch.cuda.empty_cache()", new=""),)
    assert "it gave 40.0 MiB back each time." in finding.why
    assert finding.message.startswith("The cache is emptied once per step, which takes 3.00 ms of it (19 %)")
    assert severity_in(run, finding) == "medium"


def test_what_it_waits_for_a_busy_device_is_not_saved(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", make=make_busy_step)
    (finding,) = cache_flush_in_loop(run).findings
    assert (finding.gain.step_ms, severity_in(run, finding)) == (pytest.approx(0.2), "low")


def test_now_and_then_the_call_is_no_fault_and_on_a_cpu_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert cache_flush_in_loop(run_of(tmp_path / "run", every=20)).findings == ()
    with pytest.raises(NothingToLookAt, match=r"^Needs a CUDA device\.$"):
        cache_flush_in_loop(run_of(tmp_path / "second", source="C allocator (malloc)"))


def test_a_run_without_steps_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        cache_flush_in_loop(write_run(tmp_path / "run"))


def of_snapshot(folder: Path, num_flushes: int, *, has_history: bool = True) -> Examination:
    program = Program(AllocatorSettings())
    program.malloc(MIB)
    for _ in range(num_flushes):
        program.free(program.at(OUTPUT).malloc(40 * MIB))
        program.empty_cache()
    write_snapshot(path := folder / "dump.pickle", program.snapshot(first_entry=0 if has_history else 10_000))
    with as_run(path) as run_folder:
        return cache_flush_in_loop(open_run(run_folder))


def test_a_snapshot_tells_which_line_emptied_the_cache_again_and_again(tmp_path: Path) -> None:
    (finding,) = of_snapshot(tmp_path, 5).findings
    assert str(finding.blame) == "train.py:12"
    assert finding.message == "This line emptied the cache 5 times, each time of 40.0 MiB."
    assert finding.why == "80 % of these 5 segments was asked for again."
    assert (finding.severity, finding.gain.step_ms) == ("medium", None)


def test_a_snapshot_of_few_flushes_is_silent_and_one_of_none_has_nothing_to_look_at(tmp_path: Path) -> None:
    assert of_snapshot(tmp_path, 3).findings == ()
    with pytest.raises(NothingToLookAt, match="Needs a line that empties the cache"):
        of_snapshot(tmp_path, 0)
    with pytest.raises(NotRecorded, match="holds no allocation"):
        of_snapshot(tmp_path, 5, has_history=False)
