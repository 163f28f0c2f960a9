"""What opens a window by itself on a device, and what keeps tensors there."""

import shutil
from pathlib import Path

import pytest

from efprof.artifacts.allocations import read_allocations
from efprof.artifacts.events import CollectorStopped, WindowClosed, WindowOpened
from efprof.artifacts.holders import read_counts
from efprof.artifacts.snapshot import read_snapshot
from efprof.artifacts.trace.read import read_window
from efprof.commands.report import analyse
from efprof.model import AuditResult
from tests.casebook._cases import FOLDER, MARK
from tests.gpu.cuda_runs import keep_fixture, needs_cuda, record_text
from tests.recorder.holders.test_holders import changes_of, holder_at
from tests.recorder.recording import Recorded, line_of

pytestmark = needs_cuda

ODD_STEP = 30

TRAIN = f"""
import time
import torch

model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
inputs = torch.ones(64, 256, device="cuda")
for step in range(80):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    if step == {ODD_STEP}:
        EVENT
    loss.backward()
    optimizer.step()
"""
EVENTS = {
    "slow-step": ("time.sleep(0.5)", " times the median"),
    "non-finite": ("loss = loss * float('nan')", "a loss or gradient was not finite"),
    "memory-peak": (
        "kept = torch.empty(2**28, dtype=torch.uint8, device='cuda')",
        " more memory allocated than any before it",
    ),
}


@pytest.mark.parametrize("trigger", EVENTS)
def test_a_trigger_opens_a_window_of_two_steps_whose_files_can_be_read(trigger: str, tmp_path: Path) -> None:
    event, why = EVENTS[trigger]
    options = ("--memory-steps", "none", "--trace-steps", "none", "--no-holders", "--triggers", trigger)
    recorded = record_text(tmp_path, TRAIN.replace("EVENT", event), *options)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.events(CollectorStopped) == []
    (opened,) = recorded.events(WindowOpened)
    assert opened.step > ODD_STEP
    assert opened.why.endswith(why)
    assert [step.step for step in recorded.steps if step.window == opened.window] == [opened.step, opened.step + 1]
    (closed,) = recorded.events(WindowClosed)
    if trigger == "memory-peak":
        assert closed.files == ["memory-1.pickle"]
        snapshot = read_snapshot(recorded.rank / "memory-1.pickle")
        assert any(entry.action == "alloc" for trace in snapshot.device_traces for entry in trace)
    else:
        assert closed.files == ["trace-1.json.gz", "sites-1.parquet", "allocations-1.parquet"]
        assert "kernel" in read_window(recorded.rank / "trace-1.json.gz").texts
        assert read_allocations(recorded.rank / "allocations-1.parquet").events
    keep_fixture(recorded, f"trigger-{trigger}")


OUTPUT_BYTES = 64 * 256 * 4

HOLDS = """
import torch

def train():
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inputs = torch.ones(64, 256, device="cuda")
    outputs = []
    torch.cuda.set_sync_debug_mode("error")
    for step in range(60):
        optimizer.zero_grad()
        out = model(inputs)
        out.sum().backward()
        optimizer.step()
        outputs.append(out.detach())  # fed
    torch.cuda.set_sync_debug_mode("default")

train()
"""


def test_tensors_on_a_device_are_counted_without_waiting_and_the_line_that_keeps_them_is_seen(tmp_path: Path) -> None:
    recorded = record_text(tmp_path, HOLDS, "--windows", "none")
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.events(CollectorStopped) == []
    for count in read_counts(recorded.rank)[:2]:
        holder = holder_at(count, "train.outputs")
        assert holder.length == holder.tensors == count.step + 1
        assert holder.tensor_bytes == holder.value_bytes == OUTPUT_BYTES * holder.tensors
    (change,) = changes_of(recorded, "train.outputs")
    assert change.site.startswith(f"train.py:{line_of(tmp_path / 'train.py', 'fed')}:")
    keep_fixture(recorded, "holders")


CASE = "growing_tensors.py"
ALL_ON_DEVICE = f"""
import runpy, sys, torch

torch.set_default_device("cuda")
sys.argv = [{CASE!r}, *FLAGS]
runpy.run_path({CASE!r}, run_name="__main__")
"""


def record_case(folder: Path, *flags: str) -> tuple[Recorded, AuditResult]:
    """A program of the casebook as it is, all of whose tensors lie on the device."""
    folder.mkdir()
    shutil.copy(FOLDER / CASE, folder)
    recorded = record_text(folder, ALL_ON_DEVICE.replace("FLAGS", str(list(flags))))
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.run.memory_source == "CUDA allocator"
    return recorded, next(one for one in analyse(recorded.folder).audits if one.audit_id == "growing_tensors")


def test_the_line_that_keeps_tensors_is_found_where_they_all_lie_on_a_device(tmp_path: Path) -> None:
    recorded, result = record_case(tmp_path / "sick")
    lines = (FOLDER / CASE).read_text().splitlines()
    (faulty,) = [number for number, line in enumerate(lines, 1) if line.endswith(MARK)]
    assert [str(finding.blame) for finding in result.findings] == [f"{CASE}:{faulty}"], result.reason
    keep_fixture(recorded, "growing_tensors")
    assert record_case(tmp_path / "healthy", "--healthy")[1].findings == ()
