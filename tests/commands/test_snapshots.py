"""A snapshot of the CUDA allocator on the command line: reported on, replayed, and tried under other settings."""

import json
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from efprof.commands.allocator import allocator
from efprof.commands.report import report
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.model import EfprofError, UnreadableInput
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import CACHE, OUTPUT, Program, fragmenting
from tests.audits.test_out_of_memory import truly_short
from tests.facts.allocator.recording import Recording
from tests.support.builders import write_snapshot

WITHOUT_HISTORY = Recording(AllocatorSettings())
PASSED = ["fragmented_reserve", "out_of_memory"]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "dump.pickle"
    write_snapshot(path, fragmenting(AllocatorSettings()).snapshot())
    return path


def run(command: object, *words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)  # type: ignore[arg-type]


def test_a_snapshot_alone_is_reported_on_and_its_page_says_nothing_of_what_none_tells(
    snapshot: Path, tmp_path: Path
) -> None:
    text = run(report, snapshot, "--format", "text").output
    assert "dump   a memory snapshot, without its run" in text
    assert f"/home/user/project/train.py:{CACHE}" in text
    assert "Start the command with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert f"efprof allocator what-if {snapshot}" in text
    page = tmp_path / "page.html"
    run(report, snapshot, "--out", page)
    text = page.read_text()
    assert "Reserved memory lies idle in pieces" in text
    assert "trained on the CPU" not in text
    assert "skipped steps" not in text


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """One batch after the other in the same block."""
    path, program = tmp_path / "healthy.pickle", Program(AllocatorSettings())
    for _ in range(3):
        program.free(program.at(OUTPUT).malloc(40 * MIB))
    write_snapshot(path, program.snapshot())
    return path


def test_where_nothing_is_wrong_the_page_draws_the_device_all_the_same(healthy: Path, tmp_path: Path) -> None:
    run(report, healthy, "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Reserved memory lies idle" not in text
    assert "Device 0, segment by segment" in text


def test_what_one_folder_holds_is_a_rank_each(tmp_path: Path) -> None:
    for rank in (2, 10):
        write_snapshot(tmp_path / f"rank{rank}.pickle", truly_short().snapshot())
    result = json.loads(run(report, tmp_path, "--json").output)
    assert result["run"]["num_ranks"] == 2
    (audit,) = [audit for audit in result["audits"] if audit["id"] == "out_of_memory"]
    assert len(audit["findings"]) == 2


@pytest.fixture
def half_spoilt(tmp_path: Path) -> Path:
    """A folder of a snapshot that can be read and of one that cannot."""
    (folder := tmp_path / "ranks").mkdir()
    write_snapshot(folder / "rank0.pickle", truly_short().snapshot())
    (folder / "rank1.pickle").write_bytes(b"no pickle")
    return folder


def test_a_report_on_a_folder_says_what_readable_files_tell_and_names_those_that_are_not(half_spoilt: Path) -> None:
    result = json.loads(run(report, half_spoilt, "--json").output)
    assert [audit["id"] for audit in result["audits"] if audit["status"] == "failed"] == ["out_of_memory"]
    assert [audit["id"] for audit in result["audits"] if audit["status"] == "errored"] == []
    (about,) = [warning for warning in result["warnings"] if "no whole pickle" in warning]
    assert about.startswith("rank1.pickle is no whole pickle"), "by the name that it was given under"
    (half_spoilt / "rank0.pickle").write_bytes(b"nor this")
    with pytest.raises(UnreadableInput) as refused:
        run(report, half_spoilt)
    assert str(refused.value).startswith(f"{half_spoilt / 'rank0.pickle'} is no whole pickle")


def test_what_one_rank_does_not_tell_is_said_though_another_passes(tmp_path: Path, healthy: Path) -> None:
    write_snapshot(tmp_path / "rank1.pickle", WITHOUT_HISTORY.snapshot())
    result = json.loads(run(report, healthy.parent, "--json").output)
    assert [audit["id"] for audit in result["audits"] if audit["status"] == "passed"] == PASSED
    (about_rank,) = [warning for warning in result["warnings"] if "tells nothing of device 0" in warning]
    assert about_rank.startswith("rank1.pickle "), "by the name that it was given under"


def test_a_file_that_the_model_does_not_know_says_so(tmp_path: Path) -> None:
    path, recording = tmp_path / "dump.pickle", Recording(AllocatorSettings())
    for _ in range(9):
        recording.malloc(4 * MIB)
    taken = recording.snapshot()
    for segment in taken.segments:  # as another allocator would lay them: from the end of a segment down
        for block in segment.blocks:
            block.address = 2 * segment.address + segment.total_size - block.address - block.size
        segment.blocks.reverse()
    starts = {segment.address: segment.total_size for segment in taken.segments}
    for entry in taken.device_traces[0]:
        if entry.action == "alloc":
            start = max(address for address in starts if address <= entry.addr)
            entry.addr = 2 * start + starts[start] - entry.addr - entry.size
    write_snapshot(path, taken)
    text = run(report, path, "--format", "text").output
    assert "The allocator's model places" in text
    assert "dump.pickle as it was, too little to say anything of it" in text
    assert "of device 0 as it was, too little to say anything of it" in run(allocator, "what-if", path).output


def test_what_is_of_a_newer_torch_is_told_by_every_command(healthy: Path) -> None:
    newer = pickle.loads(healthy.read_bytes())  # noqa: S301 - written above
    newer["device_traces"][0].insert(2, {"action": "compact", "addr": 1, "size": 2})
    healthy.write_bytes(pickle.dumps(newer, protocol=4))
    said = "healthy.pickle has entries of a newer torch: compact; the replay begins behind the last of them."
    assert said in json.loads(run(report, healthy, "--json").output)["warnings"]
    for command in ("replay", "what-if"):
        assert f"  {said}\n" in run(allocator, command, healthy).output
        (device,) = json.loads(run(allocator, command, healthy, "--json").output)["devices"]
        assert device["newer"] == said


def test_a_snapshot_without_history_says_how_to_record_one(tmp_path: Path) -> None:
    path = tmp_path / "dump.pickle"
    write_snapshot(path, WITHOUT_HISTORY.snapshot())
    text = run(report, path, "--json").output
    assert "torch.cuda.memory._record_memory_history(max_entries=1_000_000" in text
    assert "not replayable" in run(allocator, "replay", path).output


def test_the_replay_counts_what_is_equal(snapshot: Path) -> None:
    assert run(allocator, "replay", snapshot).output.startswith("device 0: 24 of 24 addresses equal, ")
    (device,) = json.loads(run(allocator, "replay", snapshot, "--json").output)["devices"]
    assert (device["replayable"], device["reason"]) == (True, None)
    assert (device["allocations"], device["addresses_equal"]) == (24, 24)
    assert device["segments"] == device["segments_equal"]
    assert device["peak_reserved_recorded_bytes"] == device["peak_reserved_replayed_bytes"]


def test_each_setting_that_is_asked_for_is_tried(snapshot: Path) -> None:
    words = ("--conf", "expandable_segments:True", "--conf", "max_split_size_mb:64", "--json")
    (device,) = json.loads(run(allocator, "what-if", snapshot, *words).output)["devices"]
    assert [one["conf"] for one in device["predictions"]] == ["expandable_segments:True", "max_split_size_mb:64"]
    expected = fragmenting(AllocatorSettings(expandable_segments=True)).allocator
    assert device["predictions"][0]["peak_reserved_bytes"] == expected.peak_reserved
    assert device["predictions"][0]["device_allocs"] == expected.calls.num_taken
    assert device["recorded"]["peak_reserved_bytes"] == device["peak_reserved_recorded_bytes"]
    assert device["best"] == "expandable_segments:True"


def began_warm(folder: Path) -> Path:
    """A snapshot whose recording began when memory was cached that it needs little of."""
    recording, path = Recording(AllocatorSettings()), folder / "warm.pickle"
    recording.free(recording.malloc(100 * MIB))
    first_entry = len(recording.entries)
    recording.malloc(5 * MIB)
    write_snapshot(path, recording.snapshot(first_entry=first_entry))
    return path


def test_a_recording_that_began_warm_has_a_row_to_compare_with(tmp_path: Path) -> None:
    path = began_warm(tmp_path)
    (device,) = json.loads(run(allocator, "what-if", path, "--json").output)["devices"]
    assert device["recorded"]["peak_reserved_bytes"] == 100 * MIB
    assert device["recorded_cold"]["peak_reserved_bytes"] == 20 * MIB
    text = run(allocator, "what-if", path).output
    assert "  as recorded, cold " in text
    assert "compare them with 'as recorded, cold'" in text
    (device,) = json.loads(run(allocator, "what-if", path, "--conf", "", "--json").output)["devices"]
    assert device["predictions"][0]["peak_reserved_bytes"] == 20 * MIB


def test_a_smaller_device_runs_out_and_a_setting_that_torch_would_refuse_is_refused(snapshot: Path) -> None:
    words = ("--conf", "", "--device-memory", "64MiB", "--json")
    (device,) = json.loads(run(allocator, "what-if", snapshot, *words).output)["devices"]
    assert device["predictions"][0]["out_of_memory"] is True
    assert device["predictions"][0]["peak_reserved_bytes"] <= 64 * 1024**2
    with pytest.raises(EfprofError, match=r"'expandable_segment' is no setting .*did you mean 'expandable_segments'"):
        run(allocator, "what-if", snapshot, "--conf", "expandable_segment:True")


def test_a_file_that_cannot_be_replayed_ends_the_command_with_2(tmp_path: Path, healthy: Path) -> None:
    write_snapshot(path := tmp_path / "dump.pickle", WITHOUT_HISTORY.snapshot())
    for command, *options in (["replay"], ["what-if"], ["replay", "--json"]):
        codes = [
            CliRunner().invoke(allocator, [command, str(file), *options], standalone_mode=False).return_value
            for file in (path, healthy)
        ]
        assert codes == [2, 0]
