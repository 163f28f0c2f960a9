"""A run that was recorded on a CPU, given to `efprof allocator`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from efprof.commands.allocator import allocator
from efprof.model import NotRecorded, UnreadableInput
from tests.facts.gpu_estimate.test_from_cpu import ONE_STEP, RUNS, events_at, one_step_run, steps
from tests.support.builders import GPU, make_steps, write_allocations, write_run

MIB = 1024**2
RUN = RUNS / "backward_peak-sick"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(allocator, [str(word) for word in words], catch_exceptions=False)


def estimate_of(*words: str | Path) -> dict[str, Any]:
    (device,) = json.loads(run("what-if", *words, "--json").output)["devices"]
    return device  # type: ignore[no-any-return]


def test_the_table_says_that_it_is_an_estimate_and_why_it_may_be_wrong(tmp_path: Path) -> None:
    folder = one_step_run(tmp_path).folder
    text = run("what-if", folder).output
    assert text.startswith("An estimate of what this run would reserve on a GPU")
    assert "torch's default" in text
    assert "92.0 MiB" in text
    assert "At most 82.0 MiB are in use at once, of them 12.0 MiB parameters, 24.0 MiB optimizer state." in text
    assert "cuDNN" in text
    assert "recorded:" not in text


def test_the_json_has_the_contracts_fields(tmp_path: Path) -> None:
    device = estimate_of(one_step_run(tmp_path).folder, "--conf", "expandable_segments:True")
    expected = {
        "conf", "peak_reserved_bytes", "peak_reserved_low_bytes", "peak_reserved_high_bytes", "device_allocs",
        "device_frees", "out_of_memory", "estimate",
    }  # fmt: skip
    predictions = device["predictions"]
    assert [one["conf"] for one in predictions] == ["", "expandable_segments:True"], "torch's default first"
    assert all(expected <= one.keys() and one["estimate"] is True for one in predictions)
    assert (device["device"], device["replayable"], device["estimate"]) == (0, False, True)
    assert predictions[0]["peak_reserved_bytes"] == 92 * MIB
    assert predictions[0]["fits"] is None


def test_where_nobody_read_the_memory_the_band_is_said_to_have_no_upper_end(tmp_path: Path) -> None:
    records = steps()
    records[5].memory = []
    recorded = write_run(tmp_path / "run", steps=records)
    write_allocations(recorded.rank_folder, 1, events_at(records[5].started_ns, ONE_STEP))
    assert "no true upper end" in run("what-if", recorded.folder).output
    assert estimate_of(recorded.folder)["rest_bytes"] is None


def test_a_run_cannot_be_replayed_and_without_a_window_or_on_a_gpu_not_estimated(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"directory; give a file that torch\.cuda\.memory\._dump_snapshot wrote"):
        run("replay", RUN)
    folder = write_run(tmp_path / "run", steps=make_steps(3)).folder
    with pytest.raises(NotRecorded, match=r"allocations-<n>\.parquet is missing"):
        run("what-if", folder)
    folder = write_run(tmp_path / "second", steps=make_steps(3), devices=[GPU], memory_source="CUDA allocator").folder
    with pytest.raises(NotRecorded, match=r"give one of its snapshots, memory-<n>\.pickle"):
        run("what-if", folder)


def test_a_folder_that_is_no_run_and_a_file_that_is_missing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("none")
    with pytest.raises(UnreadableInput, match=r"holds no run\.json"):
        run("what-if", tmp_path / "other")
    with pytest.raises(UnreadableInput, match="cannot be read"):
        run("what-if", tmp_path / "dump.pickle")
