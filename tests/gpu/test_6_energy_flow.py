"""energy_flow on a CUDA device: the table of `make bench-trainer`, the compiled flow step, what cleaning up costs."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.core.flow_processor import FlowProcessor
from tests.gpu.cuda_runs import ROOT, needs_cuda, results_folder, synchronisation_is_an_error

pytestmark = [*needs_cuda, pytest.mark.timeout(900)]


def _flows(*assignments: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The output surface, and the gradient of the input surface."""
    config = load_config("cpu_demo", assignments=["runtime.device=cuda", *assignments])
    torch.manual_seed(0)
    processor = FlowProcessor(config).cuda()
    surface = torch.randn(64, 16, 16).cuda().requires_grad_()
    processor(surface).surface.square().sum().backward()  # whatever is made once is made here
    surface.grad = None
    with synchronisation_is_an_error():
        landed = processor(surface).surface
        landed.square().sum().backward()
    return landed.detach(), surface.grad


@pytest.mark.parametrize("assignments", [["flow.checkpoint_steps=3"], ["runtime.compile=true"]])
def test_flows_give_the_same_numbers_with_a_setting_and_without_and_never_wait(assignments: list[str]) -> None:
    for value, expected in zip(_flows(*assignments), _flows("flow.compaction_lot=0"), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-2, atol=1e-3)


def test_the_trainer_table_has_both_configurations_and_holds_its_requirements() -> None:
    table = results_folder() / "trainer.md"
    command = [sys.executable, "-m", "benchmarks.trainer", "--device", "cuda", "--rounds", "2", "--write", str(table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    text = table.read_text(encoding="utf-8")
    assert all(f"\n| {name} | " in text for name in ("experiment", "large")), done.stderr
    assert done.returncode == 0, f"a requirement is not held: {text}"


INTERVALS = (0, 1, 10)
ROUNDS = 2


def _train(interval: int, out: Path) -> tuple[float, float]:
    """The median step in milliseconds and the most reserved bytes, of the steps after the first ten."""
    settings = ["--set", f"training.memory_cleanup_interval={interval}", "--steps", "60", "--device", "cuda"]
    command = [sys.executable, "-m", "energy_flow.train", "train", "--config", "cpu_demo", *settings, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()][10:]
    return statistics.median(one["step_ms"] for one in steps), max(one["reserved_bytes"] for one in steps)


def test_returning_unused_memory_between_steps_is_measured(tmp_path: Path) -> None:
    """`training.memory_cleanup_interval` is 0 by default, which this table is to bear out or to change."""
    runs = {
        interval: [_train(interval, tmp_path / f"{interval}-{turn}") for turn in range(ROUNDS)]
        for interval in INTERVALS
    }
    rows = [
        f"| {interval} | {statistics.median(ms for ms, _ in seen):.2f} | {max(size for _, size in seen) / 2**20:.0f} |"
        for interval, seen in runs.items()
    ]
    head = ["| memory_cleanup_interval | step, ms | reserved at most, MiB |", "| --- | --- | --- |"]
    (results_folder() / "memory_cleanup.md").write_text("\n".join([*head, *rows, ""]), encoding="utf-8")
    usual, each = (statistics.median(ms for ms, _ in runs[interval]) for interval in (0, 1))
    assert usual <= 1.05 * each, "giving memory back in every step would be the better default"
