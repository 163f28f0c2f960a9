"""The main job on a CUDA device: training is recorded end to end and reported."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from efprof.artifacts.allocations import read_allocations
from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.trace.read import read_window
from efprof.commands.report import analyse, render
from tests.gpu.cuda_runs import TRAIN_PLAINLY, needs_cuda, record_text, results_folder
from tests.recorder.recording import Recorded, record_command

pytestmark = [*needs_cuda, pytest.mark.xdist_group("main job")]

TRAIN = ["--config", "debug", "--device", "cuda", "--steps", "40"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    home = tmp_path_factory.mktemp("home")
    return record_command(
        home, [sys.executable, "-m", "energy_flow.train", "train", *TRAIN, "--out", str(home / "out")]
    )


def test_training_on_cuda_is_recorded_to_its_end_with_every_loss_although_it_comes_late(recorded: Recorded) -> None:
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 40
    assert recorded.run.memory_source == "CUDA allocator"
    assert recorded.run.devices[0].name == torch.cuda.get_device_name()
    assert recorded.run.devices[0].total_bytes == torch.cuda.get_device_properties(0).total_memory
    assert {"cuda", "driver", "torch"} <= recorded.run.versions.keys()
    assert all(isinstance(step.loss, float) for step in recorded.steps)
    boundaries = [boundary for step in recorded.steps for boundary in step.memory]
    assert len(boundaries) >= 5
    assert all(0 < boundary.allocated_bytes <= boundary.reserved_bytes for boundary in boundaries)
    windows = [step.window for step in recorded.steps]
    assert windows[:4] == ["memory-1"] * 4
    assert 1 <= windows.count("trace-1") <= 2, "the first of them only where its batch came soon"


def test_the_environment_holds_what_a_snapshot_does_not(tmp_path: Path) -> None:
    text = TRAIN_PLAINLY.replace("STEPS", "3").replace(
        "import torch\n", "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\n"
    )
    chosen = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    settings = record_text(tmp_path, text, "--windows", "none", environment=chosen).run.settings
    assert settings["memory fraction"] == "0.5"
    assert any("max_split_size_mb" in value and "64" in value for value in settings.values())


def test_the_window_holds_kernels_and_the_lines_of_python_calls(recorded: Recorded) -> None:
    trace = read_window(recorded.rank / "trace-1.json.gz")
    categories = {trace.texts[code] for code in trace.category}
    assert {"kernel", "cuda_sync"} <= categories
    assert "call_site" in trace.sparse


def test_the_window_s_allocations_are_the_device_s_and_add_up_to_what_the_allocator_counts(recorded: Recorded) -> None:
    events = read_allocations(recorded.rank / "allocations-1.parquet").events
    backward = [event for event in events if event.is_backward and event.num_bytes > 0]
    assert backward
    known = [event for event in backward if any("energy_flow" in site for site in event.forward_stack)]
    assert sum(event.num_bytes for event in known) >= 0.9 * sum(event.num_bytes for event in backward)
    differences = []
    for step in (step for step in recorded.steps if step.window == "trace-1"):
        places = [(step.started_ns + here.at_us * 1000, here.allocated_bytes) for here in step.memory]
        for (start, before), (end, after) in pairwise(places):
            differences.append(sum(one.num_bytes for one in events if start < one.time_ns <= end) - (after - before))
    assert differences.count(0) >= 0.9 * len(differences) > 0, "an event may come within a microsecond of a boundary"


def test_the_sound_trainer_has_no_finding(recorded: Recorded) -> None:
    report = analyse(recorded.folder)
    for form, name in {"html": "energy_flow.html", "json": "energy_flow.json"}.items():
        (results_folder() / name).write_text(render(report, form), encoding="utf-8")
    content = json.loads(render(report, "json"))
    assert [finding for audit in content["audits"] for finding in audit["findings"]] == []
    assert [audit for audit in content["audits"] if audit["status"] == "errored"] == []
