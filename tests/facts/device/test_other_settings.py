"""The recorded requests under other settings, as bars and in words; and the map of segments, of a recorded run."""

from pathlib import Path

import pytest

from efprof.facts.allocator import what_if
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.device.device_memory import DeviceHistory, DeviceMemory
from efprof.facts.device.other_settings import ONE_LAYOUT, how_replay_is_known, trial_bars
from efprof.facts.device.segment_map import segment_map
from efprof.model import SourceLine
from efprof.units import GIB, MIB
from tests.facts.allocator.recording import Recording
from tests.support.builders import GPU, make_steps, write_run

DEFAULT = AllocatorSettings()


def device_of(folder: Path, recording: Recording, *, first_entry: int = 0) -> DeviceHistory:
    snapshots = [recording.snapshot(first_entry=first_entry)]
    run = write_run(
        folder, steps=make_steps(3), snapshots=snapshots, devices=[GPU], memory_source="CUDA caching allocator"
    )
    (device,) = run.get(DeviceMemory).devices
    return device


def fragmenting() -> Recording:
    """Each batch is larger than the one before, and leaves something small in its memory."""
    recording = Recording(DEFAULT)
    for number in range(12):
        recording.free(recording.malloc((40 + 4 * number) * MIB))
        recording.malloc(2 * MIB)
    return recording


def test_the_bars_are_the_recorded_settings_and_every_trial(tmp_path: Path) -> None:
    recording = fragmenting()
    device = device_of(tmp_path / "run", recording)
    bars = trial_bars(device)
    by_role = {one.role: one for one in bars.alternatives if one.role != "other"}
    assert len(bars.alternatives) == 1 + len(device.trials)
    assert by_role["recorded"].value == recording.allocator.peak_reserved
    assert by_role["best"].label == "expandable_segments:True"
    assert by_role["best"].value < by_role["recorded"].value
    assert bars.limit is None
    assert all(one.low <= one.value <= one.high for one in bars.alternatives)


def test_the_page_says_where_a_band_comes_of_one_layout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of(tmp_path / "run", fragmenting())
    assert ONE_LAYOUT not in " ".join(how_replay_is_known(device).paragraphs)
    monkeypatch.setattr(what_if, "MANY_OPERATIONS", 10)
    assert ONE_LAYOUT in " ".join(how_replay_is_known(device).paragraphs)


def test_where_the_recording_began_warm_there_is_a_row_that_starts_as_the_others_do(tmp_path: Path) -> None:
    recording = Recording(DEFAULT)
    recording.free(recording.malloc(100 * MIB))
    first_entry = len(recording.entries)
    recording.malloc(5 * MIB)
    device = device_of(tmp_path / "run", recording, first_entry=first_entry)
    recorded, cold, *others = trial_bars(device).alternatives
    assert (cold.label, recorded.value, cold.value) == ("as recorded, cold", 100 * MIB, 20 * MIB)
    assert len(others) == len(device.trials)


def test_what_the_device_has_is_known_from_a_failure(tmp_path: Path) -> None:
    recording = Recording(DEFAULT, capacity=200 * MIB)
    recording.malloc(100 * MIB)
    recording.malloc(60 * MIB)
    assert recording.attempt(80 * MIB) is None
    bars = trial_bars(device_of(tmp_path / "run", recording))
    assert bars.limit[0] == 200 * MIB
    assert all(one.is_out_of_memory for one in bars.alternatives)
    assert [one.role for one in bars.alternatives if one.role != "other"] == ["recorded"]


def test_the_map_shows_the_peak_and_the_end_unless_it_is_the_peak(tmp_path: Path) -> None:
    recording = Recording(DEFAULT)
    large = recording.malloc(GIB)
    recording.malloc(30 * MIB)
    recording.free(large)
    device = device_of(tmp_path / "run", recording)
    blame = SourceLine(file="train.py", line=12, function="step", text="")
    found = segment_map(device, device.peak, "at the peak", blame, "map")
    peak, end = found.views
    assert (peak.label, end.label) == ("at the peak", "at the end of the recording")
    assert peak.totals == (("used", GIB + 30 * MIB),)
    assert end.totals == (("used", 30 * MIB), ("releasable", GIB))
    assert (found.owners, found.highlighted) == (("train.py:12",), 0)
    recording = Recording(DEFAULT)
    recording.free(recording.malloc(30 * MIB))
    recording.malloc(GIB)
    device = device_of(tmp_path / "second", recording)
    assert len(segment_map(device, device.peak, "at the peak", None, "map").views) == 1
