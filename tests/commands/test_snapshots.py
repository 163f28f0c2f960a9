"""A snapshot of the CUDA allocator on the command line: reported on, replayed, and tried under other settings."""

import json
import os
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from efprof.commands.allocator import allocator
from efprof.commands.report import report
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.segment_evidence import DeviceOverview
from efprof.model import EfprofError, UnreadableInput
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import CACHE, OUTPUT, Program, fragmenting
from tests.audits.test_out_of_memory import truly_short
from tests.builders import write_snapshot
from tests.facts.allocator.recording import Recording

WITHOUT_HISTORY = Recording(AllocatorSettings())


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "dump.pickle"
    write_snapshot(path, fragmenting(AllocatorSettings()).snapshot())
    return path


def run(command: object, *words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)  # type: ignore[arg-type]


def test_a_snapshot_alone_is_reported_on(snapshot: Path) -> None:
    text = run(report, snapshot, "--format", "text").output
    assert "dump   a memory snapshot, without its run" in text
    assert f"/home/user/project/train.py:{CACHE}" in text
    assert "Start the command with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert f"efprof allocator what-if {snapshot}" in text


def test_its_page_says_nothing_of_what_no_snapshot_tells(snapshot: Path, tmp_path: Path) -> None:
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


def test_a_picture_that_cannot_be_made_costs_no_report(
    healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: object) -> DeviceOverview:
        raise ZeroDivisionError

    monkeypatch.setattr(DeviceOverview, "compute", fail)
    run(report, healthy, "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "segment by segment" not in text
    assert "fragmented_reserve" in text


def test_a_folder_of_snapshots_has_a_rank_for_each(tmp_path: Path) -> None:
    for rank in (2, 10):
        write_snapshot(tmp_path / f"rank{rank}.pickle", truly_short().snapshot())
    result = json.loads(run(report, tmp_path, "--json").output)
    assert result["run"]["num_ranks"] == 2
    (audit,) = [audit for audit in result["audits"] if audit["id"] == "out_of_memory"]
    assert len(audit["findings"]) == 2


def test_a_snapshot_without_history_says_how_to_record_one(tmp_path: Path) -> None:
    path = tmp_path / "dump.pickle"
    write_snapshot(path, WITHOUT_HISTORY.snapshot())
    text = run(report, path, "--json").output
    assert "torch.cuda.memory._record_memory_history(max_entries=1_000_000" in text
    shown = run(report, path, "--format", "text").output
    assert '_record_memory_history(max_entries=1_000_000, stacks="python")' in shown, "not cut off"
    assert "not replayable" in run(allocator, "replay", path).output


def test_a_pickle_that_asks_for_code_runs_none(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Hostile()]}))
    with pytest.raises(UnreadableInput, match="nothing of it was run"):
        run(allocator, "replay", path)
    with pytest.raises(UnreadableInput, match="nothing of it was run") as refused:
        run(report, path, "--format", "text")
    assert str(path) in str(refused.value), "the file as it was given"
    assert not (tmp_path / "ran").exists()


def test_the_replay_counts_what_is_equal(snapshot: Path) -> None:
    assert run(allocator, "replay", snapshot).output.startswith("device 0: 24 of 24 addresses equal, ")
    (device,) = json.loads(run(allocator, "replay", snapshot, "--json").output)["devices"]
    assert device["replayable"] is True
    assert (device["allocations"], device["addresses_equal"]) == (24, 24)
    assert device["segments"] == device["segments_equal"]
    assert device["peak_reserved_recorded_bytes"] == device["peak_reserved_replayed_bytes"]


def test_each_setting_that_is_asked_for_is_tried(snapshot: Path) -> None:
    words = ("--conf", "expandable_segments:True", "--conf", "max_split_size_mb:64", "--json")
    (device,) = json.loads(run(allocator, "what-if", snapshot, *words).output)["devices"]
    assert [one["conf"] for one in device["predictions"]] == ["expandable_segments:True", "max_split_size_mb:64"]
    expected = fragmenting(AllocatorSettings(expandable_segments=True)).allocator
    assert device["predictions"][0]["peak_reserved_bytes"] == expected.peak_reserved
    assert device["predictions"][0]["device_allocs"] == expected.calls.num_maps
    assert device["recorded"]["peak_reserved_bytes"] == device["peak_reserved_recorded_bytes"]
    assert device["best"] == "expandable_segments:True"


def test_a_recording_that_began_warm_has_a_row_to_compare_the_others_with(tmp_path: Path) -> None:
    recording, path = Recording(AllocatorSettings()), tmp_path / "warm.pickle"
    recording.free(recording.malloc(100 * MIB))
    first_entry = len(recording.entries)
    recording.malloc(5 * MIB)
    write_snapshot(path, recording.snapshot(first_entry=first_entry))
    (device,) = json.loads(run(allocator, "what-if", path, "--json").output)["devices"]
    assert device["recorded"]["peak_reserved_bytes"] == 100 * MIB
    assert device["recorded_cold"]["peak_reserved_bytes"] == 20 * MIB
    text = run(allocator, "what-if", path).output
    assert "  as recorded, cold " in text
    assert "compare them with 'as recorded, cold'" in text


def test_a_recording_that_began_cold_has_no_such_row(snapshot: Path) -> None:
    (device,) = json.loads(run(allocator, "what-if", snapshot, "--json").output)["devices"]
    assert device["recorded_cold"] is None
    assert "cold" not in run(allocator, "what-if", snapshot).output


def test_settings_that_hurt_or_do_nothing_are_said_to(snapshot: Path) -> None:
    words = ("--conf", "expandable_segments:True,max_split_size_mb:64", "--conf", "garbage_collection_threshold:0.8")
    text = run(allocator, "what-if", snapshot, *words).output
    assert "expandable_segments and max_split_size_mb hurt together" in text
    assert "garbage_collection_threshold does nothing without a memory fraction" in text


def test_a_setting_that_torch_would_refuse_is_refused(snapshot: Path) -> None:
    with pytest.raises(EfprofError, match="did you mean 'expandable_segments'"):
        run(allocator, "what-if", snapshot, "--conf", "expandable_segment:True")


def test_a_smaller_device_runs_out(snapshot: Path) -> None:
    words = ("--conf", "", "--device-memory", "64MiB", "--json")
    (device,) = json.loads(run(allocator, "what-if", snapshot, *words).output)["devices"]
    assert device["predictions"][0]["out_of_memory"] is True
    assert device["predictions"][0]["peak_reserved_bytes"] <= 64 * 1024**2
