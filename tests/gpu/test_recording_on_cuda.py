"""The main job on a CUDA device: recorded end to end, without making the host wait, and reported."""

import io
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, OutOfMemory
from efprof.artifacts.trace import read_trace
from efprof.commands.report import analyse, render
from tests.recorder.recording import Recorded, open_session, record_command

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRAIN = ["--config", "debug", "--device", "cuda", "--steps", "40"]


class PlainUnpickler(pickle.Unpickler):
    """Reads snapshots, which hold plain values only."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    home = tmp_path_factory.mktemp("home")
    return record_command(
        home, [sys.executable, "-m", "energy_flow.train", "train", *TRAIN, "--out", str(home / "out")]
    )


def test_training_on_cuda_is_recorded_to_its_end(recorded: Recorded) -> None:
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 40
    assert recorded.run.memory_source == "CUDA allocator"
    assert recorded.run.devices[0].total_bytes > 0


def test_every_step_has_its_loss_and_gradient_norm_although_they_come_late(recorded: Recorded) -> None:
    assert all(isinstance(step.loss, float) for step in recorded.steps)
    assert all(isinstance(step.gradient_norm, float) for step in recorded.steps)


def test_memory_at_the_boundaries_is_the_allocators_own(recorded: Recorded) -> None:
    boundaries = [boundary for step in recorded.steps for boundary in step.memory]
    assert all(0 < boundary.allocated_bytes <= boundary.reserved_bytes for boundary in boundaries)


def test_the_window_holds_kernels_and_the_lines_of_python_calls(recorded: Recorded) -> None:
    trace = read_trace(recorded.rank / "trace-1.json.gz")
    assert any(event.category == "kernel" for event in trace.events)
    assert any(event.arguments.call_site for event in trace.events)


def test_the_snapshot_starts_before_the_model_and_holds_plain_values(recorded: Recorded) -> None:
    content = (recorded.rank / "memory-1.pickle").read_bytes()
    snapshot = PlainUnpickler(io.BytesIO(content)).load()
    (trace, *_) = (events for events in snapshot["device_traces"] if events)
    assert trace[0]["action"] == "segment_alloc"


def test_no_step_is_in_two_windows(recorded: Recorded) -> None:
    windows = [step.window for step in recorded.steps]
    assert windows[:4] == ["memory-1"] * 4
    assert windows[5:7] == ["trace-1"] * 2


def test_the_sound_trainer_has_no_finding(recorded: Recorded) -> None:
    report = json.loads(render(analyse(recorded.folder), "json"))
    assert [finding for audit in report["audits"] for finding in audit["findings"]] == []
    assert [audit for audit in report["audits"] if audit["status"] == "errored"] == []


def test_recording_adds_no_synchronisation(tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 256, device="cuda")
    session = open_session(tmp_path / "run")
    session.start()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        session.end()
    recorded = Recorded(folder=tmp_path / "run")
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 100


def test_out_of_memory_ends_the_run_as_such_and_keeps_a_snapshot(tmp_path: Path) -> None:
    script = tmp_path / "greedy.py"
    script.write_text(
        "import torch\n"
        "weight = torch.ones(1, device='cuda', requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for step in range(100):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
        "    kept = torch.empty(2**45 if step == 2 else 2**20, dtype=torch.uint8, device='cuda')\n"
    )
    recorded = record_command(tmp_path / "home", [sys.executable, str(script)])
    assert recorded.run.ended == "out_of_memory"
    assert len(recorded.events(OutOfMemory)) == 1
    assert (recorded.rank / "memory-1.pickle").exists()
