"""Who has what of a device, by a snapshot from anywhere: with its history, or as it lies at the end."""

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.foreign import as_run
from efprof.artifacts.snapshot import Snapshot, read_snapshot
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.device.device_memory import DeviceMemory, DeviceStates
from efprof.facts.device.who_holds import who_holds
from efprof.facts.run.run import open_run
from efprof.model import NotRecorded
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import CACHE, OUTPUT, Program, frames_of
from tests.support.builders import write_snapshot

SETTINGS = AllocatorSettings()


def holds(folder: Path, snapshot: Snapshot) -> str:
    write_snapshot(path := folder / "dump.pickle", snapshot)
    with as_run(path) as run_folder:
        return who_holds(open_run(run_folder))


def held(snapshot: Snapshot, line: int) -> Snapshot:
    """With a stack of that line at each block in use, as torch notes it beside the history."""
    for block in (block for segment in snapshot.segments for block in segment.blocks if block.is_active):
        block.frames = frames_of(line)
    return snapshot


def test_without_a_history_the_blocks_in_use_tell_who_has_them(tmp_path: Path) -> None:
    program = Program(SETTINGS)
    program.free([program.malloc(60 * MIB) for _ in range(2)][1])
    snapshot = held(msgspec.structs.replace(program.snapshot(), device_traces=[]), CACHE)
    assert holds(tmp_path, snapshot) == (
        "Device 0 had 60.0 MiB in use: 100 % at /home/user/project/train.py:4. "
        "It had 120 MiB reserved, 60.0 MiB of it in whole free segments: the cache."
    )
    with as_run(tmp_path / "dump.pickle") as folder:
        run = open_run(folder)
        with pytest.raises(NotRecorded, match="tells only the end of device 0: its history holds no allocation"):
            run.get(DeviceMemory)


def test_blocks_without_a_stack_are_not_called_a_backward_pass(tmp_path: Path) -> None:
    program = Program(SETTINGS)
    program.malloc(60 * MIB)
    snapshot = msgspec.structs.replace(program.snapshot(), device_traces=[])
    assert "60.0 MiB in use: 100 % at lines that were not recorded" in holds(tmp_path, snapshot)


def test_torch_2_0_keeps_the_stack_of_a_block_in_its_history(tmp_path: Path) -> None:
    history = [{"addr": 4096, "real_size": 512, "frames": frames_of(CACHE)}]
    blocks: list[dict[str, Any]] = [
        {"size": 512, "requested_size": 512, "state": "active_allocated", "history": history},
        {"size": 512, "requested_size": 512, "state": "inactive", "history": history},
    ]
    segment = {"address": 4096, "total_size": 1024, "stream": 0, "segment_type": "small", "blocks": blocks}
    (path := tmp_path / "old.pickle").write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    used, free = read_snapshot(path).segments[0].blocks
    assert (used.frames, free.frames) == (frames_of(CACHE), None)


def test_what_was_there_before_the_recording_is_told_apart_from_threads_without_python(tmp_path: Path) -> None:
    program = Program(SETTINGS)
    program.at(CACHE).malloc(30 * MIB)
    first = len(program.entries)
    program.at(OUTPUT).malloc(50 * MIB)
    program.at(None).malloc(20 * MIB)
    assert holds(tmp_path, program.snapshot(first_entry=first)) == (
        "Device 0 had at most 100 MiB in use: 50 % at train.py:3, 30 % from before the recording, "
        "20 % in threads whose stacks name no line of yours. It had 100 MiB reserved at most."
    )


def test_most_in_use_and_most_reserved_may_be_at_different_times(tmp_path: Path) -> None:
    program = Program(SETTINGS)
    program.free(program.at(CACHE).malloc(90 * MIB))
    first = len(program.entries)
    program.at(OUTPUT).malloc(40 * MIB)
    told = holds(tmp_path, program.snapshot(first_entry=first))
    assert told.startswith("Device 0 had at most 40.0 MiB in use: 100 % at train.py:3. It had 90.0 MiB reserved before")


def test_a_history_that_the_model_does_not_know_leaves_the_end(tmp_path: Path) -> None:
    program = Program(SETTINGS)
    for _ in range(9):
        program.at(CACHE).malloc(4 * MIB)
    snapshot = held(program.snapshot(), CACHE)
    for entry in snapshot.device_traces[0]:  # as another allocator would place them
        entry.addr += (entry.action == "alloc") * 512
    write_snapshot(path := tmp_path / "dump.pickle", snapshot)
    with as_run(path) as folder:
        (device,) = open_run(folder).get(DeviceStates).devices
        assert not device.has_history
        assert device.peak.owners[0].site == "/home/user/project/train.py:4:train"


def test_an_allocator_that_ran_out_and_went_on_is_told(tmp_path: Path) -> None:
    program = Program(SETTINGS, capacity=150 * MIB)
    program.free(program.at(CACHE).malloc(90 * MIB))
    program.at(OUTPUT).malloc(100 * MIB)
    assert holds(tmp_path, program.snapshot()).endswith("It ran out 1 time, and gave its cache back to go on.")


def test_a_bare_list_of_segments_is_a_snapshot_too_and_an_empty_one_says_so(tmp_path: Path) -> None:
    program = Program(SETTINGS)
    program.malloc(60 * MIB)
    raw = msgspec.to_builtins(program.snapshot())["segments"]
    for name, segments in (("full", raw), ("empty", [])):
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(segments))
    for name, told in (("full", "Device 0 had 60.0 MiB in use"), ("empty", "No memory of a device is in this")):
        with as_run(tmp_path / f"{name}.pickle") as folder:
            assert who_holds(open_run(folder)).startswith(told)
