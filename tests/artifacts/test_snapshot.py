"""Snapshots of CUDA's allocator: whatever a file holds, it is read or refused, and nothing of it is run."""

import copyreg
import os
import pickle
import pickletools
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.snapshot import read_snapshot
from efprof.model import UnreadableInput

MIB = 1024**2
FRAMES = [{"filename": "train.py", "line": 3, "name": "step"}]

SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0, "address": 0x7F0000000000, "total_size": 2 * MIB, "allocated_size": 512, "active_size": 1024,
            "requested_size": 100, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 1),
            "is_expandable": False, "frames": FRAMES,
            "blocks": [
                {"address": 0x7F0000000000, "size": 512, "requested_size": 100, "state": "active_allocated",
                 "frames": FRAMES},
                {"address": 0x7F0000000200, "size": 512, "requested_size": 7, "state": "active_pending_free"},
                {"address": 0x7F0000000400, "size": 2 * MIB - 1024, "requested_size": 0, "state": "inactive"},
            ],
        }
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 0x7F0000000000, "size": 2 * MIB, "stream": 0, "time_us": 1,
             "frames": FRAMES, "compile_context": "N/A", "user_metadata": "step=1", "pool_id": (0, 1)},
            {"action": "alloc", "addr": 0x7F0000000000, "size": 100, "stream": 0, "time_us": 2, "frames": FRAMES},
            {"action": "oom", "device_free": 5 * MIB, "size": 9 * MIB, "stream": 0},
        ],
        [],
    ],
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "max_split_size": 128 * MIB,
        "garbage_collection_threshold": 0.5, "expandable_segments": False, "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {"1": 0, "2": 4},
    },
    "external_annotations": [{"device": 0, "time_us": 1, "name": "Optimizer.step#Adam.step", "stage": "START"}],
}  # fmt: skip


def written(folder: Path, content: Any, *, protocol: int = 4) -> Path:
    path = folder / "memory.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol))
    return path


def refusal_of(path: Path) -> str:
    """What is said of a file that is no snapshot; one sentence that names it, of letters that a terminal can show."""
    with pytest.raises(UnreadableInput) as refusal:
        read_snapshot(path)
    message = str(refusal.value)
    assert message.startswith(str(path))
    assert message.endswith(".")
    assert ". " not in message.removeprefix(str(path))
    assert message.isprintable()
    return message


# What there is to read.


def test_what_a_snapshot_says_is_read(tmp_path: Path) -> None:
    snapshot = read_snapshot(written(tmp_path, SNAPSHOT))
    (segment,) = snapshot.segments
    assert (segment.address, segment.total_size, segment.segment_type) == (0x7F0000000000, 2 * MIB, "small")
    assert (segment.segment_pool_id, segment.is_expandable, segment.stream, segment.device) == ((0, 1), False, 0, 0)
    assert [(block.requested_size, block.is_active) for block in segment.blocks] == [(100, True), (7, True), (0, False)]
    (first, second, failure), nothing = snapshot.device_traces
    assert (first.action, first.addr, first.size, first.time_us) == ("segment_alloc", 0x7F0000000000, 2 * MIB, 1)
    assert (first.pool_id, second.pool_id) == ((0, 1), None)
    assert first.frames == FRAMES
    assert first.frames is second.frames, "a stack is kept once"
    assert (failure.action, failure.device_free, failure.size) == ("oom", 5 * MIB, 9 * MIB)
    assert (failure.frames, failure.time_us) == (None, None)
    assert nothing == []
    assert snapshot.settings.configuration == "max_split_size_mb:128"
    assert snapshot.settings.max_split_size == 128 * MIB
    assert snapshot.settings.roundup_power2_divisions == {"1": 0, "2": 4}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_that_torch_wrote_reads_the_same(tmp_path: Path, protocol: int) -> None:
    expected = read_snapshot(written(tmp_path, SNAPSHOT))
    assert read_snapshot(written(tmp_path, SNAPSHOT, protocol=protocol)) == expected


def test_snapshots_of_older_torches_are_read(tmp_path: Path) -> None:
    blocks = [{"size": size, "state": "inactive"} for size in (512, 1024, 4096)]
    snapshot = read_snapshot(written(tmp_path, {"segments": [{"address": 4096, "total_size": 5632, "blocks": blocks}]}))
    assert [block.address for block in snapshot.segments[0].blocks] == [4096, 4608, 5632]
    assert snapshot.device_traces == []
    assert snapshot.settings is None


OF_2_15: dict[str, Any] = SNAPSHOT | {
    "host_segments": [{"address": 1, "size": 2}], "host_traces": [{"action": "alloc", "addr": 1}],
    "allocator_settings": SNAPSHOT["allocator_settings"] | {"max_round_threshold": -1, "max_cached_size": -1},
    "device_traces": [
        [
            *(entry | {"internal_metadata": "mallocWithAddress"} for entry in SNAPSHOT["device_traces"][0]),
            {"action": "annotate", "addr": 0x7F0000000000, "size": 100, "stream": 0, "user_metadata": "kept"},
        ],
        [],
    ],
}  # fmt: skip


def test_what_torch_2_15_writes_is_known(tmp_path: Path) -> None:
    snapshot = read_snapshot(written(tmp_path, OF_2_15))
    assert snapshot.newer == ""
    assert [entry.action for entry in snapshot.device_traces[0]] == ["segment_alloc", "alloc", "oom", "annotate"]
    assert read_snapshot(written(tmp_path, SNAPSHOT)).newer == ""


def test_fields_of_a_newer_torch_are_passed_over_and_named(tmp_path: Path) -> None:
    newer = SNAPSHOT | {"trace_alloc_overflowed": True, "allocator_settings": {"max_cached_size": [1], "n": None}}
    newer["segments"] = [segment | {"numa": {"node": 1}} for segment in SNAPSHOT["segments"]]
    newer["device_traces"] = [[entry | {"forward_frames": ["f"], "x": b"y"} for entry in SNAPSHOT["device_traces"][0]]]
    snapshot = read_snapshot(written(tmp_path, newer))
    assert snapshot.segments == read_snapshot(written(tmp_path, SNAPSHOT)).segments
    assert len(snapshot.device_traces[0]) == 3
    assert snapshot.newer == "has fields of a newer torch, which are not read: n, numa, x."


@pytest.mark.parametrize("place", range(4))
def test_a_history_begins_behind_the_last_entry_of_an_unknown_kind_which_is_named(tmp_path: Path, place: int) -> None:
    trace = list(SNAPSHOT["device_traces"][0])
    trace.insert(place, {"action": "compact", "addr": 1, "size": 2})
    snapshot = read_snapshot(written(tmp_path, SNAPSHOT | {"device_traces": [trace, []]}))
    assert snapshot.newer == ("has entries of a newer torch: compact; the replay begins behind the last of them.")
    whole = read_snapshot(written(tmp_path, SNAPSHOT))
    assert snapshot.device_traces == [whole.device_traces[0][place:], []]


# What is no snapshot.


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (5, "int"),
        ({}, "segments"),
        ([1], "$.segments[0]"),
        ({"segments": [1]}, "$.segments[0]"),
        ({"segments": [{"total_size": 1}]}, "blocks"),
        ({"segments": [{"total_size": "1", "blocks": []}]}, "$.segments[0].total_size"),
        ({"segments": [{"total_size": 1, "blocks": [{"size": 1}]}]}, "$.segments[0].blocks[0]"),
        ({"segments": [{"total_size": 1, "blocks": [], "segment_pool_id": (0, 1, 2)}]}, "$.segments[0].segment_pool"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": -1}]]}, "$.device_traces[0][0].size"),
        ({"segments": [], 1: 2}, "str"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(tmp_path: Path, content: Any, named: str) -> None:
    assert named in refusal_of(written(tmp_path, content))


def test_a_missing_file_a_folder_and_a_list_that_holds_itself_are_no_snapshots(tmp_path: Path) -> None:
    assert "No such file" in refusal_of(tmp_path / "memory.pickle")
    assert "directory" in refusal_of(tmp_path)
    endless: list[Any] = []
    endless.append(endless)
    assert "no snapshot" in refusal_of(written(tmp_path, endless))
    refusal_of(written(tmp_path, {"segments": [], "\udcff": 1}))
    refusal_of(written(tmp_path, {"segments": [], "allocator_settings": {"garbage_collection_threshold": 10**400}}))


def test_a_file_that_is_no_pickle_or_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    assert "no whole pickle" in refusal_of(written(tmp_path, b'{"segments": []}'))
    whole = pickle.dumps(SNAPSHOT, protocol=4)
    for length in range(0, len(whole), 17):
        assert "no whole pickle" in refusal_of(written(tmp_path, whole[:length]))


def test_a_file_of_a_dozen_bytes_takes_no_memory_to_speak_of(tmp_path: Path) -> None:
    """LONG_BINPUT notes an object under a number, for which Python's unpickler makes a table of twice that length."""
    path = written(tmp_path, b"\x80\x04]r" + (1 << 24).to_bytes(4, "little") + b".")
    tracemalloc.start()
    try:
        try_to_read(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * MIB


# What would run something.


def text_of(command: str) -> bytes:
    return b"X" + len(command).to_bytes(4, "little") + command.encode()


@contextmanager
def extension() -> Iterator[None]:
    """Number 240 stands for `os.system`."""
    copyreg.add_extension("os", "system", 0xF0)
    try:
        yield
    finally:
        copyreg.remove_extension("os", "system", 0xF0)
        copyreg.clear_extension_cache()


class Reduced:
    """Pickled, it is the call of a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        function, *arguments = self.call
        return function, tuple(arguments)


def payloads(command: str) -> dict[str, bytes]:
    """Pickles that run a command with each of the operations that can; Python's own reader falls for all of them."""
    quoted, text = f"S{command!r}\n".encode(), text_of(command)
    calls = {f"REDUCE of protocol {number}": pickle.dumps(Reduced(os.system, command), number) for number in range(6)}
    within = {
        "segments": [],
        "device_traces": [[{"action": "alloc", "size": 1, "frames": [Reduced(os.system, command)]}]],
    }
    return calls | {
        "GLOBAL": b"\x80\x02cos\nsystem\n" + text + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04" + text_of("os") + text_of("system") + b"\x93" + text + b"\x85R.",
        "INST": b"(" + quoted + b"ios\nsystem\n.",
        "OBJ": b"(cos\nsystem\n" + quoted + b"o.",
        "NEWOBJ": b"\x80\x02csubprocess\nPopen\n" + text_of("touch") + b"\x85\x81.",
        "BUILD": b"\x80\x02ctypes\nSimpleNamespace\n)R}" + text_of("__setstate__") + b"cos\nsystem\nsb" + text + b"b.",
        "a name with a dot": b"\x80\x04" + text_of("shutil") + text_of("os.system") + b"\x93" + text + b"\x85R.",
        "within a stack of a snapshot": pickle.dumps(within, 4),
    }


@pytest.mark.parametrize("name", payloads(""))
def test_what_a_pickle_asks_for_is_not_run(tmp_path: Path, name: str) -> None:
    trace = tmp_path / "it-ran"
    payload = payloads(f"touch {trace}")[name]
    message = refusal_of(written(tmp_path, payload))
    assert "asks for" in message
    assert "nothing of it was run" in message
    assert not trace.exists()


def test_the_name_that_it_asks_for_is_told_and_what_would_do_no_harm_is_refused_too(tmp_path: Path) -> None:
    assert "asks for os.system," in refusal_of(written(tmp_path, b"cos\nsystem\n."))
    refusal_of(written(tmp_path, [complex(1, 2)], protocol=2))


@pytest.mark.parametrize("operation", [b"Pmemory\n.", b"\x80\x02K\x01Q.", b"\x80\x02X\x01\x00\x00\x00aQ."])
def test_an_object_that_lies_outside_the_pickle_is_refused(tmp_path: Path, operation: bytes) -> None:
    assert "asks for" in refusal_of(written(tmp_path, operation))


@pytest.mark.parametrize("operation", [b"\x82\xf0", b"\x83\xf0\x00", b"\x84\xf0\x00\x00\x00"])
def test_an_extension_that_is_registered_is_not_run(tmp_path: Path, operation: bytes) -> None:
    """Nor when it was used before: Python keeps what it has looked up once, and then asks no unpickler."""
    trace = tmp_path / "it-ran"
    path = written(tmp_path, b"\x80\x02" + operation + text_of(f"touch {trace}") + b"\x85R.")
    with extension():
        assert "asks for" in refusal_of(path)
        pickle.loads(b"\x80\x02\x82\xf0.")  # noqa: S301
        try_to_read(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "state", [b"}b.", b"K\x01b.", b"}X\x01\x00\x00\x00aK\x01sb.", b"}}X\x01\x00\x00\x00aK\x01s\x86b."]
)
def test_a_state_that_is_given_to_a_container_is_refused(tmp_path: Path, state: bytes) -> None:
    refusal_of(written(tmp_path, b"\x80\x02]" + state))


# Whatever it holds.


def try_to_read(path: Path) -> None:
    with suppress(UnreadableInput):
        read_snapshot(path)


@contextmanager
def little_memory() -> Iterator[None]:
    """As spoilt pickles may ask for any amount of it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 128 * MIB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def read_bytes(folder: Path, content: bytes) -> None:
    path = written(folder, content)
    with little_memory():
        try_to_read(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spoilt")


opcodes = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
arguments = [
    b"\x00",
    b"\x01\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"os\nsystem\n",
    b"1\n",
    b"'a'\n",
    text_of("a"),
    b"K\x01",
]


@settings(max_examples=250)
@given(parts=st.lists(st.sampled_from(opcodes + arguments), max_size=25))
def test_any_row_of_operations_is_read_or_refused(folder: Path, parts: list[bytes]) -> None:
    read_bytes(folder, b"\x80\x04" + b"".join(parts) + b".")


@settings(max_examples=250)
@given(data=st.data(), protocol=st.integers(2, 5), num_changes=st.integers(1, 3))
def test_a_snapshot_of_which_bytes_were_spoilt_is_read_or_refused(
    folder: Path, data: st.DataObject, protocol: int, num_changes: int
) -> None:
    content = bytearray(pickle.dumps(SNAPSHOT, protocol=protocol))
    for _ in range(num_changes):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    read_bytes(folder, bytes(content))
