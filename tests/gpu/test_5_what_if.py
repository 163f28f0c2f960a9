"""What the allocator's model predicts under six settings, beside what a device then reserves."""

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efprof.facts.allocator.replay import Replay
from efprof.facts.allocator.replay_results import DevicePredictions, predict_file, replay_file
from tests.gpu.cuda_runs import needs_cuda, results_folder

pytestmark = [*needs_cuda, pytest.mark.xdist_group("what-if")]

CONFIGURATIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
    "expandable_segments:True,max_split_size_mb:64",
)

TRAINING = """
import json, sys
import torch

torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(512, nhead=8, dim_feedforward=2048, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range(12):
    inputs = torch.randn(4 + step % 3, 128 + 64 * (step % 5), 512, device="cuda")
    optimizer.zero_grad()
    outputs = model(inputs)
    outputs.square().mean().backward()
    optimizer.step()
    kept.append(outputs.detach()[:1].clone())
torch.cuda.memory._dump_snapshot(sys.argv[1])
stats = torch.cuda.memory_stats()
print(json.dumps({"peak": stats["reserved_bytes.all.peak"], "segments": stats["segment.all.allocated"]}))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The folder of the snapshots, and the peak that each setting reserved."""
    folder = tmp_path_factory.mktemp("what-if")
    script = folder / "train.py"
    script.write_text(TRAINING)

    def peak(number: int) -> int:
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": CONFIGURATIONS[number]}
        command = [sys.executable, str(script), str(folder / f"{number}.pickle")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return int(json.loads(done.stdout.splitlines()[-1])["peak"])

    with ThreadPoolExecutor() as pool:  # beside each other: nothing here is timed
        peaks = list(pool.map(peak, range(len(CONFIGURATIONS))))
    return folder, dict(zip(CONFIGURATIONS, peaks, strict=True))


@pytest.mark.parametrize("number", range(len(CONFIGURATIONS)), ids=[one or "default" for one in CONFIGURATIONS])
def test_every_address_of_a_recording_is_foretold(number: int, measured: tuple[Path, dict[str, int]]) -> None:
    folder, peaks = measured
    (device,) = replay_file(folder / f"{number}.pickle")
    assert isinstance(device, Replay), device.reason
    assert device.match_share == 1
    assert device.peak_reserved_replayed_bytes == peaks[CONFIGURATIONS[number]]


def test_the_peaks_under_six_settings_are_predicted_from_one_recording(measured: tuple[Path, dict[str, int]]) -> None:
    folder, peaks = measured
    (device,) = predict_file(folder / "0.pickle", CONFIGURATIONS)
    rows = ["| settings | predicted | band | measured | error |", "| --- | --- | --- | --- | --- |"]
    errors = []
    assert isinstance(device, DevicePredictions), device.reason
    for prediction in device.predictions:
        real, outcome = peaks[prediction.configuration], prediction.outcome
        errors.append(outcome.peak_reserved_bytes / real - 1)
        low, high = outcome.peak_reserved_low_bytes, outcome.peak_reserved_high_bytes
        rows.append(
            f"| {prediction.configuration or 'default'} | {outcome.peak_reserved_bytes:,} | {low:,} to {high:,} | "
            f"{real:,} | {errors[-1]:+.2%} |"
        )
    (results_folder() / "what-if.md").write_text("\n".join(rows) + "\n")
    assert errors[0] == 0.0
    assert statistics.median(map(abs, errors)) <= 0.01
    assert max(map(abs, errors)) <= 0.05
