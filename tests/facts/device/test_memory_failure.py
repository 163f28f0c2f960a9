"""What lay on the device when memory ran out without a history: which lines are known, and which are likely."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import DeviceOutOfMemory, OutOfMemory, StepInterrupted
from efprof.artifacts.snapshot import Snapshot
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.device.memory_failure import SNAPSHOT, FailureState
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import MemoryFailure
from efprof.model import NotRecorded, UnreadableInput
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import CACHE, OUTPUT, TRAIN, Program
from tests.support.builders import write_run, write_snapshot

ACTIVATION, KEPT = 30 * MIB, 40 * MIB


def filled(settings: AllocatorSettings | None = None) -> Program:
    """Twelve activations, of which every other one is freed, and what is kept."""
    program = Program(settings or AllocatorSettings(), capacity=512 * MIB)
    blocks = [program.at(OUTPUT).malloc(ACTIVATION) for _ in range(8)]
    program.at(CACHE).malloc(KEPT)
    for block in blocks[::2]:
        program.free(block)
    return program


def without_history(program: Program) -> Snapshot:
    """As it is between windows."""
    snapshot = program.snapshot()
    snapshot.device_traces = [[]]
    for block in (block for segment in snapshot.segments for block in segment.blocks if block.is_active):
        block.frames = None
    return snapshot


def failed(folder: Path, snapshot: Snapshot, requested: int = 300 * MIB, *, message: str = "", **fields: Any) -> Run:
    """A run that ended so, with what the allocator told."""
    text = message or f"CUDA out of memory. Tried to allocate {requested / MIB:.2f} MiB. GPU 0 has"
    events = [
        DeviceOutOfMemory(at_ns=1, step=9, device=0, requested_bytes=requested, free_bytes=8 * MIB, num_failed=1),
        StepInterrupted(at_ns=2, step=9, stage="forward", allocated_bytes=1, reserved_bytes=1),
        OutOfMemory(at_ns=2, step=9, message=text, site=f"train.py:{OUTPUT}:train"),
    ]
    run = write_run(folder, events=events, ended="out_of_memory", sources={"train.py": TRAIN}, **fields)
    write_snapshot(run.rank_folder / SNAPSHOT, snapshot)
    return run


def test_lines_that_a_window_saw_ask_for_as_much_are_told_by_size(tmp_path: Path) -> None:
    program = filled()
    activations, kept = (
        failed(tmp_path, without_history(program), snapshots=[program.snapshot()]).get(FailureState).sizes.rows
    )
    assert activations == (ACTIVATION, 4, 4 * ACTIVATION, f"train.py:{OUTPUT}")
    assert kept[-1] == f"train.py:{CACHE}"
    other = Program(AllocatorSettings())
    other.at(CACHE).malloc(MIB)
    state = failed(tmp_path / "other", without_history(program), snapshots=[other.snapshot()]).get(FailureState)
    assert {row[-1] for row in state.sizes.rows} == {"none"}


def test_the_failed_request_meets_the_free_blocks_as_they_were_and_no_setting_is_tried(tmp_path: Path) -> None:
    device = failed(tmp_path, without_history(filled())).get(FailureState).device
    assert (device.trials, device.best) == ([], None)
    failure = device.failure
    assert (failure.requested_bytes, failure.device_free_bytes) == (300 * MIB, 8 * MIB)
    assert failure.piece_bytes == (ACTIVATION,) * 4
    assert failure.site == f"train.py:{OUTPUT}:train", "the line of the error"
    failure = failed(tmp_path / "third", without_history(filled()), 2 * MIB).get(FailureState).device.failure
    assert failure.piece_bytes == ()


@pytest.mark.parametrize(
    ("message", "num_bytes"),
    [
        ("CUDA out of memory. Tried to allocate 1.23 GiB. GPU 0 has a total capacity of", 1_320_157_184),
        ("CUDA out of memory. Tried to allocate 80.00 MiB. GPU 0 has", 80 * MIB),
        ("Allocation on device 0 would exceed allowed memory.\nRequested               : 4.00 GiB\n", 4 << 30),
        ("CUDA error: out of memory", None),
    ],
)
def test_the_request_is_known_to_the_byte_where_the_message_rounds_it_and_another_shortage_s_is_not_taken_for_it(
    message: str, num_bytes: int | None, tmp_path: Path
) -> None:
    run = failed(tmp_path, without_history(filled()), 1_320_157_184, message=message)
    assert run.get(MemoryFailure).requested_bytes == num_bytes


def test_a_run_without_such_a_snapshot_and_one_with_a_spoilt_one_say_so(tmp_path: Path) -> None:
    run = failed(tmp_path / "spoilt", without_history(filled()))
    (run.rank_folder / SNAPSHOT).write_bytes(b"\x80\x04")
    with pytest.raises(UnreadableInput):
        run.get(FailureState)
    run = failed(tmp_path / "missing", without_history(filled()))
    (run.rank_folder / SNAPSHOT).unlink()
    with pytest.raises(NotRecorded, match=r"memory-out-of-memory\.pickle is missing"):
        run.get(FailureState)
