"""Loaders that pin their batches, which are copied to the device while it computes: losses and stages are right."""

import json
from pathlib import Path

import pytest

from efprof.artifacts.events import CollectorStopped, LoaderBuilt
from tests.gpu.cuda_runs import keep_fixture, needs_cuda, record_text
from tests.recorder.recording import stages

pytestmark = needs_cuda

NUM_STEPS, BATCH = 40, 64

PINNED = f"""
import json
import torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(0)
    inputs = torch.randn({NUM_STEPS * BATCH}, 256)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    torch.cuda.set_sync_debug_mode("error")
    for x, y in DataLoader(data, batch_size={BATCH}, num_workers=WORKERS, pin_memory=True):
        assert x.is_pinned() and y.is_pinned()
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.set_sync_debug_mode("default")
    print(json.dumps([float(loss) for loss in losses]))

if __name__ == "__main__":
    main()
"""
"""Whatever waits for the device raises within the loop; of the recorder that would stop a collector."""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_batches_are_recorded_with_their_losses_and_nothing_waits(num_workers: int, tmp_path: Path) -> None:
    recorded = record_text(tmp_path, PINNED.replace("WORKERS", str(num_workers)), "--windows", "none")
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.events(CollectorStopped) == []
    (loader,) = recorded.events(LoaderBuilt)
    assert (loader.pin_memory, loader.num_workers) == (True, num_workers)
    steps = recorded.steps
    assert [step.loss for step in steps] == json.loads(recorded.output.splitlines()[-1])
    assert [stages(step) for step in steps[1:]] == [["data", "forward", "backward", "optimizer"]] * (NUM_STEPS - 1)
    assert {step.samples for step in steps} == {BATCH}
    assert all(span.device_us is not None for step in steps[2:] for span in step.spans)
    keep_fixture(recorded, f"pinned-{num_workers}")
