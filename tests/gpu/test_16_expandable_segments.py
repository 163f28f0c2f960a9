"""A training with expandable segments, recorded: its history can be read, replayed and asked what-if."""

import pytest

from efprof.artifacts.allocations import read_allocations
from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.snapshot import read_snapshot
from efprof.commands.report import analyse
from efprof.facts.allocator.replay import Replay
from efprof.facts.allocator.replay_results import DevicePredictions, predict_file, replay_file
from tests.gpu.cuda_runs import TRAIN_PLAINLY, keep_fixture, needs_cuda, record_text
from tests.recorder.recording import Recorded

pytestmark = [*needs_cuda, pytest.mark.xdist_group("expandable segments")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    options = ("--memory-steps", "0:4,8:11", "--trace-steps", "5:7", "--triggers", "none")
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    folder = tmp_path_factory.mktemp("expandable")
    found = record_text(folder, TRAIN_PLAINLY.replace("STEPS", "14"), *options, environment=settings)
    assert found.exit_code == 0, found.errors
    keep_fixture(found, "expandable_segments")
    return found


def test_the_windows_are_recorded_and_the_first_with_the_growth_of_its_segments_is_foretold(recorded: Recorded) -> None:
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 14
    assert read_allocations(recorded.rank / "allocations-1.parquet").events
    assert [audit.reason for audit in analyse(recorded.folder).audits if audit.status == "errored"] == []
    path = recorded.rank / "memory-1.pickle"
    snapshot = read_snapshot(path)
    assert all(segment.is_expandable for segment in snapshot.segments)
    assert any(entry.action == "segment_map" for trace in snapshot.device_traces for entry in trace)
    (device,) = replay_file(path)
    assert isinstance(device, Replay), device.reason
    assert device.match_share == 1


@pytest.mark.parametrize("window", ["memory-1", "memory-2"])
def test_what_if_runs_on_both_windows(window: str, recorded: Recorded) -> None:
    configurations = ("expandable_segments:True", "expandable_segments:False", "max_split_size_mb:32")
    (device,) = predict_file(recorded.rank / f"{window}.pickle", configurations)
    assert isinstance(device, DevicePredictions), device.reason
    assert [prediction.configuration for prediction in device.predictions] == list(configurations)
    recorded = device.recorded.outcome.peak_reserved_bytes
    assert recorded == pytest.approx(device.peak_reserved_recorded_bytes, rel=0.01)
    outcomes = [one.outcome for one in device.predictions]
    assert all(one.peak_reserved_bytes > 0 and not one.is_out_of_memory for one in outcomes)
