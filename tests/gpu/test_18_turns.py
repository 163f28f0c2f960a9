"""Two sides in one device's memory take turns: a gate waits for the device, so a slower side is as slow as it is."""

import sys
import time
from pathlib import Path

import pytest

from efprof.compare.sides import turns
from efprof.compare.sides.starting import Training
from efprof.compare.sides.trees import Tree
from tests.gpu.cuda_runs import needs_cuda, needs_two
from tests.support.waiting import MAX_WAIT_S

pytestmark = needs_cuda

TRAIN = """\
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4096, 2048, device="cuda")
for _ in range(100_000):
    optimizer.zero_grad()
    for _ in range({passes}):
        model(x).square().mean().backward()
    optimizer.step()
"""
RANKS = """\
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(512, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def trees(folder: Path, *texts: str) -> tuple[Tree, Tree]:
    made = []
    (folder / "project").mkdir()
    for side, text in zip(("base", "head"), texts, strict=True):
        tree = folder / "work" / side / "clean" / "project"
        tree.mkdir(parents=True)
        (tree / "train.py").write_text(text)
        made.append(Tree(ref=side, commit=side, root=folder / "project", place=folder / "work", folder=tree))
    return made[0], made[1]


@pytest.fixture(autouse=True)
def one_pair_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LOOKS", (1,))


def test_twice_the_work_on_the_device_takes_twice_as_long(tmp_path: Path) -> None:
    both = trees(tmp_path, *(TRAIN.format(passes=passes) for passes in (1, 2)))
    training = Training(command=(sys.executable, "train.py"), here=tmp_path / "project")
    end = time.monotonic() + MAX_WAIT_S
    times = turns.take_turns(both, training, home=tmp_path / "home", end=end, say=lambda _: None)
    assert times.why == ""
    assert 0.5 < times.pairs[0].typical < 0.8  # ln 2 = 0.69, less what an update takes


@needs_two
def test_two_ranks_over_nccl_wait_at_their_gates(tmp_path: Path) -> None:
    both = trees(tmp_path, RANKS, RANKS)
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    training = Training(command=words, here=tmp_path / "project")
    end = time.monotonic() + MAX_WAIT_S
    times = turns.take_turns(both, training, home=tmp_path / "home", end=end, say=lambda _: None)
    assert times.why == ""
