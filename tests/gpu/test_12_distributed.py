"""Training on several ranks over NCCL: each has its own steps, losses and device, and nothing more is exchanged."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, read_events
from efprof.artifacts.readings import read_device_use
from efprof.artifacts.steps import read_steps
from tests.gpu.cuda_runs import keep_fixture, needs_cuda, needs_two
from tests.recorder.recording import Recorded, record_command
from tests.support.waiting import MAX_WAIT_S

pytestmark = [
    *needs_cuda,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_nccl_available()), reason="needs NCCL"
    ),
]

NUM_STEPS = 30

PROGRAM = f"""
import json, os, sys
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
WRAP
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(16, 64, device="cuda") * (rank + 1)

def train(num_steps):
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses

losses = train(10)
torch.cuda.synchronize()
with torch.profiler.profile() as profiler:
    losses += train({NUM_STEPS - 10})
names = [event.name for event in profiler.events()]
told = dict(
    losses=[float(loss) for loss in losses],
    collectives=Counter(name for name in names if name.startswith("c10d::")),
    waits=sum("ynchronize" in name for name in names),
    contexts=[torch._C._cuda_hasPrimaryContext(device) for device in range(torch.cuda.device_count())],
)
with open(f"{{sys.argv[0]}}.{{rank}}", "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
"""
WRAPS = {
    "ddp": "model = DistributedDataParallel(model, device_ids=[rank])",
    "fsdp2": "for layer in (model[0], model[2], model):\n    fully_shard(layer)",
}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What each rank said of itself, bare and recorded."""

    bare: list[dict[str, Any]]
    told: list[dict[str, Any]]
    recorded: Recorded

    def rank(self, number: int) -> Path:
        return self.recorded.folder / f"rank{number}"


@pytest.fixture(
    scope="module",
    params=[("ddp", 1), pytest.param(("ddp", 2), marks=needs_two), pytest.param(("fsdp2", 2), marks=needs_two)],
    ids=lambda kind: "-".join(map(str, kind)),
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    kind, num_ranks = request.param
    folder = tmp_path_factory.mktemp(kind)
    script = folder / "train.py"
    script.write_text(PROGRAM.replace("WRAP", WRAPS[kind]))
    here = ["--standalone", "--local-addr", "localhost", "--nproc-per-node", str(num_ranks)]
    command = [sys.executable, "-m", "torch.distributed.run", *here, str(script)]

    def told() -> list[dict[str, Any]]:
        return [json.loads(Path(f"{script}.{rank}").read_text()) for rank in range(num_ranks)]

    subprocess.run(command, check=True, timeout=MAX_WAIT_S, capture_output=True)
    bare = told()
    recorded = record_command(folder / "home", command, options=("--windows", "none"))
    assert recorded.exit_code == 0, recorded.errors
    keep_fixture(recorded, f"{kind}-{num_ranks}")
    return Runs(bare=bare, told=told(), recorded=recorded)


def test_every_rank_has_its_own_steps_losses_and_device_and_recording_adds_nothing(runs: Runs) -> None:
    for number, (told, bare) in enumerate(zip(runs.told, runs.bare, strict=True)):
        steps = read_steps(runs.rank(number))[0]
        assert [step.micro_batches for step in steps] == [1] * NUM_STEPS
        assert [step.loss for step in steps] == told["losses"] == pytest.approx(bare["losses"], rel=1e-4)
        assert [one for one in read_events(runs.rank(number))[0] if isinstance(one, CollectorStopped)] == []
        assert told["collectives"] == bare["collectives"] != {}
        assert told["waits"] <= bare["waits"]
        assert {reading.device for reading in read_device_use(runs.rank(number))} == {number}
        assert told["contexts"] == bare["contexts"]
        assert all(here.allocated_bytes > 0 for one in steps for here in one.memory)
