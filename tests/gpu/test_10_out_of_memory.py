"""Out of memory outside a window, on a CUDA device: what torch tells, what the snapshot holds, what a dump costs."""

import time
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import DeviceOutOfMemory, OutOfMemory, WindowClosed, WindowOpened
from efprof.artifacts.snapshot import read_snapshot
from efprof.audits.out_of_memory import out_of_memory
from efprof.facts.run.run import open_run
from efprof.model import Finding, Table
from efprof.recorder.windows.cuda_memory import MAX_ENTRIES, RING_ENTRIES, WINDOW, CudaHistory, write_snapshot
from efprof.units import MIB
from tests.gpu.cuda_runs import needs_cuda, record_text, results_folder
from tests.recorder.recording import Recorded, line_of

pytestmark = needs_cuda

TRAIN = """
import torch

MIB = 2**20
weight = torch.ones(MIB, device="cuda", requires_grad=True)  # weight
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    activation = torch.empty(24 * MIB, dtype=torch.uint8, device="cuda")  # activation
    weight.sum().backward()
    optimizer.step()
    if step == 2:
        FAIL
"""
REQUEST = 'torch.empty(2**45, dtype=torch.uint8, device="cuda")  # request'
MAX_DUMP_S = 5.0
"""Of a full history: it is why MAX_ENTRIES is what it is, since nothing interrupts a dump."""
BYTES_PER_ENTRY = 1_500
"""Of a dump: 0.3 GiB of a full history."""
ONE_STEP = ("--memory-steps", "0:1", "--trace-steps", "none", "--triggers", "none")
SURVIVED = """
        for _ in range(20):
            try:
                torch.empty(2**45, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                pass
"""


def finding_of(recorded: Recorded) -> Finding:
    assert recorded.run.ended == "out_of_memory", recorded.errors
    (finding,) = out_of_memory(open_run(recorded.folder)).findings
    return finding


def test_between_windows_there_is_no_history_and_blocks_of_a_window_keep_their_stacks(tmp_path: Path) -> None:
    recorded = record_text(tmp_path, TRAIN.replace("FAIL", REQUEST), *ONE_STEP)
    snapshot = read_snapshot(recorded.rank / f"{WINDOW}.pickle")
    assert not any(entry.action == "alloc" for trace in snapshot.device_traces for entry in trace)
    active = [block for segment in snapshot.segments for block in segment.blocks if block.is_active]
    (weight,) = [block for block in active if block.frames and block.requested_size == 4 * MIB]
    assert any(frame["filename"].endswith("train.py") for frame in weight.frames)
    finding = finding_of(recorded)
    assert str(finding.blame) == f"train.py:{line_of(tmp_path / 'train.py', 'request')}"
    (table,) = [one for one in finding.evidence if isinstance(one, Table)]
    activation = f"train.py:{line_of(tmp_path / 'train.py', 'activation')}"
    assert (24.0 * MIB, 1.0) in [row[:2] for row in table.rows]
    assert f"{activation} (memory-1.pickle)" in [row[-1] for row in table.rows if row[0] == 24 * MIB]


@pytest.mark.parametrize("options", [ONE_STEP, ("--windows", "none")])
def test_with_a_ring_the_failure_is_replayed(options: tuple[str, ...], tmp_path: Path) -> None:
    recorded = record_text(tmp_path, TRAIN.replace("FAIL", REQUEST), "--memory-ring", *options)
    trace = read_snapshot(recorded.rank / f"{WINDOW}.pickle").device_traces[0]
    assert any(entry.action == "oom" for entry in trace)
    activation = f"train.py:{line_of(tmp_path / 'train.py', 'activation')}"
    assert f"{activation} held 24.0 MiB" in finding_of(recorded).why


def test_the_observer_and_the_message_tell_the_segment_that_was_asked_for(tmp_path: Path) -> None:
    """20 MiB for a request of 3, and 2 for one of half."""
    fail = (
        "torch.cuda.set_per_process_memory_fraction(0.02)\n        kept = []\n"
        '        while True:\n            kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))'
    )
    recorded = record_text(tmp_path, TRAIN.replace("FAIL", fail), "--windows", "none")
    (event,) = recorded.events(OutOfMemory)
    (device_event,) = recorded.events(DeviceOutOfMemory)
    assert event.requested_bytes == device_event.requested_bytes == 20 * MIB


def test_out_of_memory_errors_that_the_program_survives_are_counted_and_dumped_once(tmp_path: Path) -> None:
    recorded = record_text(tmp_path, TRAIN.replace("FAIL", SURVIVED), "--windows", "none")
    assert recorded.run.ended == "finished", recorded.errors
    assert [event.num_failed for event in recorded.events(DeviceOutOfMemory)] == [1, 20]
    assert [event.window for event in recorded.events(WindowClosed)] == [WINDOW]


def test_the_failure_that_ends_the_program_has_its_own_snapshot_after_others(tmp_path: Path) -> None:
    recorded = record_text(tmp_path, TRAIN.replace("FAIL", f"{SURVIVED}        {REQUEST}"), "--windows", "none")
    assert [event.why.partition(" could")[0] for event in recorded.events(WindowOpened)] == [
        "device 0",
        "the program ended for want of memory",
    ]
    (table,) = [one for one in finding_of(recorded).evidence if isinstance(one, Table)]
    assert (24.0 * MIB, 1.0) in [row[:2] for row in table.rows], "the error still has what its functions held"


def test_a_rejected_request_is_an_out_of_memory_error_that_no_observer_is_told_of(tmp_path: Path) -> None:
    if "num_oom_rejections" not in torch.cuda.memory_stats():
        pytest.skip("needs torch 2.12")
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"}
    recorded = record_text(tmp_path, TRAIN.replace("FAIL", REQUEST), "--windows", "none", environment=settings)
    assert recorded.run.ended == "out_of_memory", recorded.errors
    (results_folder() / "rejection.txt").write_text(recorded.events(OutOfMemory)[0].message)
    (device_event,) = recorded.events(DeviceOutOfMemory)
    assert (device_event.num_failed, device_event.num_rejected) == (0, 1)


def test_an_error_of_the_driver_says_that_memory_is_out(tmp_path: Path) -> None:
    """What pinned memory beyond all that the host has is refused with."""
    recorded = record_text(tmp_path, TRAIN.replace("FAIL", "torch.empty(2**45, pin_memory=True)"), "--windows", "none")
    (results_folder() / "driver-out-of-memory.txt").write_text(recorded.errors)
    assert recorded.run.ended == "out_of_memory", recorded.errors


def test_a_dump_costs_no_more_than_was_reckoned_with(tmp_path: Path) -> None:
    """The table goes to the results: seconds and the size of the file by the number of entries."""
    history, rows = CudaHistory(), []
    try:
        for num_entries in (10_000, 100_000, MAX_ENTRIES):
            history.turn_on(num_entries)
            for _ in range(num_entries // 2):
                torch.empty(1000, device="cuda")
            start = time.monotonic()
            write_snapshot(tmp_path / "dump.pickle")
            rows.append((num_entries, time.monotonic() - start, (tmp_path / "dump.pickle").stat().st_size))
            history.turn_off()
    finally:
        history.turn_off()
    lines = [f"{entries},{seconds:.3f},{size}" for entries, seconds, size in rows]
    (results_folder() / "dump-cost.csv").write_text("\n".join(["entries,seconds,bytes", *lines]) + "\n")
    entries, seconds, size = rows[-1]
    assert size < BYTES_PER_ENTRY * entries
    assert seconds < MAX_DUMP_S


def test_what_a_ring_costs_goes_to_the_results() -> None:
    """Microseconds for each tensor that is made and freed, without a history and with a full ring."""
    history, costs = CudaHistory(), []
    try:
        for is_on in (False, True):
            if is_on:
                history.turn_on(RING_ENTRIES)
            for num_tensors in (RING_ENTRIES, 100_000):  # the first round fills the ring
                start = time.perf_counter()
                for _ in range(num_tensors):
                    torch.empty(1000, device="cuda")
                cost_us = (time.perf_counter() - start) / num_tensors * 1e6
            costs.append(cost_us)
        assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == RING_ENTRIES
    finally:
        history.turn_off()
    (results_folder() / "ring-cost.csv").write_text(f"us without,us with a ring\n{costs[0]:.2f},{costs[1]:.2f}\n")
