"""Whole steps in a CUDA graph, and compiled training: the same steps and losses with the recorder and without it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import CollectorStopped
from tests.gpu.cuda_runs import keep_fixture, needs_cuda, record_text
from tests.recorder.recording import Recorded
from tests.support.waiting import MAX_WAIT_S

pytestmark = needs_cuda

NUM_EAGER, NUM_REPLAYS = 3, 60

GRAPHED = f"""
import json
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, losses, aside = torch.randn(16, 32, device="cuda"), [], torch.cuda.Stream()

def step():
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()

aside.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(aside):
    for _ in range({NUM_EAGER}):
        losses.append(step())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        loss = step()
    for _ in range({NUM_REPLAYS}):
        inputs.copy_(torch.randn(16, 32, device="cuda"))
        graph.replay()
        losses.append(loss.clone())
print(json.dumps(dict(losses=[float(value) for value in losses])))
"""


def said(output: str) -> dict[str, Any]:
    return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


def both(folder: Path, text: str, *options: str, **variables: str) -> tuple[dict[str, Any], Recorded]:
    """What the program says without the recorder, and its recording, of which that is the same."""
    recorded = record_text(folder, text, *options, environment=variables)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.events(CollectorStopped) == []
    bare = subprocess.run(
        [sys.executable, str(folder / "train.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=True,
    )
    there, here = said(bare.stdout), said(recorded.output)
    assert here.pop("losses") == pytest.approx(there.pop("losses"), rel=1e-4)
    assert here == there
    return said(recorded.output), recorded


@pytest.mark.parametrize("overhead", ["100%", "0.0000001%"], ids=["full", "light"])
def test_every_replay_of_a_captured_step_is_a_step_with_its_own_loss_or_none(overhead: str, tmp_path: Path) -> None:
    told, recorded = both(tmp_path, GRAPHED, "--windows", "none", "--overhead", overhead)
    steps, losses = recorded.steps, told["losses"]
    assert [step.micro_batches for step in steps] == [1] * (NUM_EAGER + NUM_REPLAYS)
    assert [step.loss for step in steps[:NUM_EAGER]] == losses[:NUM_EAGER]
    replayed = zip(steps[NUM_EAGER:], losses[NUM_EAGER:], strict=True)
    assert [step.step for step, loss in replayed if step.loss not in (None, loss)] == []
    keep_fixture(recorded, f"replays-{'full' if overhead == '100%' else 'light'}")


COMPILED = """
import json
import torch
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 1)).cuda()
compiled = torch.compile(model, mode=MODE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(30):
    inputs = torch.randn(64, 64, device="cuda")
    optimizer.zero_grad()
    loss = (compiled(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
kept = {name: dict(counters[name]) for name in ("frames", "stats", "graph_break", "recompiles", "aot_autograd")}
graphs = {name: count for name, count in counters["inductor"].items() if name.startswith("cudagraph")}
print(json.dumps(dict(losses=[float(loss) for loss in losses], compiled=kept, graphs=graphs)))
"""


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_training_has_the_same_losses_and_graphs_as_without_the_recorder(mode: str, tmp_path: Path) -> None:
    """With its default windows."""
    pytest.importorskip("triton", reason="needs triton")
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    }
    told, recorded = both(tmp_path, COMPILED.replace("MODE", repr(mode)), **caches)
    assert told["compiled"]["stats"]["unique_graphs"] == 1
    assert told["compiled"]["graph_break"] == {}
    assert (told["graphs"].get("cudagraph_recorded_non_static_inputs", 0) > 0) == (mode == "reduce-overhead")
    assert [step.loss for step in recorded.steps] == told["losses"]
    assert {step.window for step in recorded.steps[:7]} == {"memory-1", None, "trace-1"}
    keep_fixture(recorded, f"compiled-{mode}")
