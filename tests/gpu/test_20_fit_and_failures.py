"""`efprof fit`, memory that libraries cannot get, sharded losses, and warnings of torch's, on a real device."""

import sys
from pathlib import Path

from efprof.artifacts.events import CollectorStopped, NumbersUnread
from efprof.artifacts.readings import read_device_use
from efprof.audits.out_of_memory import out_of_memory
from efprof.facts.run.run import open_run
from efprof.fit.measuring import measure_peak
from efprof.units import MIB
from tests.gpu.cuda_runs import TRAIN_PLAINLY, needs_cuda, record_text

pytestmark = needs_cuda

FITTED = """
import sys
import torch

model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    model(torch.ones(int(sys.argv[1]), 1024, device="cuda")).mean().backward()
    optimizer.step()
    torch.cuda.empty_cache()
"""

FULL = """
matrix = torch.eye(64, device="cuda")
held = []
while torch.cuda.mem_get_info()[0] > 32 * 2**20:
    held.append(torch.empty(16 * 2**20, dtype=torch.uint8, device="cuda"))
torch.linalg.eigh(matrix)
"""

SHARDED = """
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
mesh = DeviceMesh("cuda", (0,))
weight = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.25)
for _ in range(3):
    optimizer.zero_grad()
    DTensor.from_local(weight.sum(), mesh, [Replicate()], run_check=False).backward()
    optimizer.step()
"""


def test_fit_measures_what_the_allocator_had_reserved_within_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FITTED)
    peak = measure_peak([sys.executable, str(tmp_path / "train.py"), "{batch}"], 8192) or 0
    assert 64 * MIB < peak < 256 * MIB


def test_a_library_that_gets_no_memory_ends_the_run_as_out_of_memory_with_a_snapshot(tmp_path: Path) -> None:
    recorded = record_text(tmp_path, TRAIN_PLAINLY.replace("STEPS", "3") + FULL, "--windows", "none")
    assert recorded.run.ended == "out_of_memory", recorded.errors
    (finding,) = out_of_memory(open_run(recorded.folder)).findings
    assert "could not get memory" in finding.message, "a library, not PyTorch's allocator"
    assert (recorded.rank / "memory-out-of-memory.pickle").exists()


def test_a_replicated_loss_is_read_late_and_the_other_numbers_go_on(tmp_path: Path) -> None:
    recorded = record_text(tmp_path, SHARDED, "--windows", "none")
    assert [step.loss for step in recorded.steps] == [4.0, 3.0, 2.0], recorded.errors
    assert [step.gradient_norm for step in recorded.steps] == [2.0] * 3
    assert recorded.events(NumbersUnread) == []


def test_no_collector_warns_also_where_warnings_are_errors_and_all_windows_open(tmp_path: Path) -> None:
    text = "import warnings\nwarnings.simplefilter('error')\n" + TRAIN_PLAINLY.replace("STEPS", "60")
    recorded = record_text(tmp_path, text, "--overhead", "100%")
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.events(CollectorStopped) == []
    assert recorded.errors.splitlines() == recorded.our_lines


def test_what_libraries_use_of_the_device_is_read_again_at_the_end(tmp_path: Path) -> None:
    recorded = record_text(tmp_path, TRAIN_PLAINLY.replace("STEPS", "5"), "--windows", "none")
    *_, last = read_device_use(recorded.rank)
    assert last.step == 5
    assert last.outside_bytes > 0
