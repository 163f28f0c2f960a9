"""growing_host_memory: fires on Python objects that pile up, on the line that keeps them, and not on tensors."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.steps import BoundaryMemory, StepRecord
from efprof.audits.growing_host_memory import growing_host_memory
from efprof.facts.run.run import Run
from efprof.model import Finding, NotRecorded, Series, ThinEvidence
from efprof.units import KIB, MIB
from tests.audits.growing_runs import containers_of, seen, watch_of
from tests.support.builders import GPU, make_step, write_run

TRAIN = """\
def train(model, loader, optimizer):
    log, last = [], {}
    for step, batch in enumerate(loader):
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append({"step": step, "scores": scores_of(batch)})
        last["loss"] = loss.item()
"""
BACKWARD = "train.py:6:train"
HEAP, PYTHON = 400 * MIB, 220 * MIB


def growing(
    num_steps: int = 120, *, python_bytes: float = MIB, tensor_bytes: int = 0, **fields: Any
) -> list[StepRecord]:
    """Steps that leave so much behind."""
    steps = []
    for number in range(num_steps):
        step = make_step(number, backward_site=BACKWARD, **fields)
        allocated = 300 * MIB + tensor_bytes * number
        heap = HEAP + tensor_bytes * number
        step.memory = [BoundaryMemory("post_optimizer_step", 1000.0, allocated, heap)]
        step.rss_bytes = PYTHON + heap + round(python_bytes * number)
        steps.append(step)
    return steps


def run_of(folder: Path, steps: list[StepRecord], *, per_step: int = MIB, **fields: Any) -> Run:
    """With counts of a list that got longer by one entry of so many bytes a step, and the line that was seen."""
    ends = (19, len(steps) // 2, len(steps) - 1)
    counted = {
        "counts": containers_of(ends, path="train.log", entry_bytes=per_step) if per_step else [],
        "watches": [watch_of(seen(), path="train.log", number=7)] if per_step else [],
    }
    return write_run(folder, steps=steps, sources={"train.py": TRAIN}, **{**counted, **fields})


def only_finding(run: Run) -> Finding:
    (finding,) = growing_host_memory(run).findings
    return finding


def test_it_blames_the_line_that_was_seen_to_fill_the_container_and_claims_no_peak_of_tensors(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", growing()))
    assert str(finding.blame) == "train.py:8"
    assert finding.headline == "Python objects accumulate in `train.log`"
    assert finding.message.startswith("The process's memory outside of tensors grows 1.00 MiB per step")
    assert "deque(maxlen=...)" in finding.fix.summary
    gain = finding.gain
    assert gain.peak_bytes is None
    assert gain.explanation.startswith("118 MiB of host memory")
    series = [each for each in finding.evidence if isinstance(each, Series)]
    assert series[0].lines[0].y[0] == PYTHON


def test_resident_memory_alone_never_decides_and_names_the_file_where_memray_recorded_it(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", growing(), per_step=0)
    with pytest.raises(ThinEvidence, match=r"no container was counted .* 'efprof record --host-memory -- python train"):
        growing_host_memory(run)
    run = run_of(tmp_path / "second", growing(), per_step=0)
    (run.rank_folder / "host.memray").write_bytes(b"")
    with pytest.raises(ThinEvidence, match=r"python -m memray tree .*/host\.memray"):
        growing_host_memory(run)


def test_a_container_that_explains_little_of_it_or_is_bounded_is_not_blamed(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="resident memory alone tells no leak"):
        growing_host_memory(run_of(tmp_path / "run", growing(), per_step=8 * KIB))
    counts = containers_of((19, 60, 119), entry_bytes=MIB, max_length=10_000)
    with pytest.raises(ThinEvidence, match="no container was counted"):
        growing_host_memory(run_of(tmp_path / "second", growing(), counts=counts))


def test_a_heap_in_pieces_and_a_full_cache_are_no_growth_of_objects(tmp_path: Path) -> None:
    steps = growing(python_bytes=0)
    for step in steps:
        step.rss_bytes += step.step * MIB
        step.memory[-1].reserved_bytes += step.step * MIB
    assert growing_host_memory(run_of(tmp_path / "run", steps, per_step=0)).findings == ()
    steps = growing(python_bytes=0)
    for step in steps:
        step.rss_bytes += min(step.step, 60) * 3 * MIB
    assert growing_host_memory(run_of(tmp_path / "second", steps, per_step=0)).findings == ()


def test_on_a_device_the_hosts_whole_memory_counts_and_takes_a_larger_rise(tmp_path: Path) -> None:
    steps = growing(200)
    finding = only_finding(run_of(tmp_path / "run", steps, devices=[GPU], memory_source="CUDA allocator"))
    assert str(finding.blame) == "train.py:8"
    assert "memory on the host grows 1.00 MiB per step" in finding.message
    # 100 MiB: the heap's holes alone can be as much.
    run = run_of(tmp_path / "second", growing(), per_step=0, devices=[GPU], memory_source="CUDA allocator")
    assert growing_host_memory(run).findings == ()


def test_a_run_that_is_short_or_without_resident_memory_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="read 9 times after warm-up"):
        growing_host_memory(run_of(tmp_path / "run", growing(13)))
    steps = growing()
    for step in steps:
        step.rss_bytes = 0
    with pytest.raises(NotRecorded, match="record the run on Linux"):
        growing_host_memory(run_of(tmp_path / "second", steps))
