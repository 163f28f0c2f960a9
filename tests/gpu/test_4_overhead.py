"""What recording costs on a CUDA device: the table of `make bench-overhead`, with the loops moved there."""

import subprocess
import sys

import pytest

from benchmarks.loops import COMPARED, LOOPS
from benchmarks.variants import HOST_MEMORY, PROFILER, TIER_1, TIER_2
from tests.gpu.cuda_runs import ROOT, needs_cuda, results_folder

pytestmark = [*needs_cuda, pytest.mark.timeout(900)]


def test_the_overhead_table_has_every_loop_on_the_device() -> None:
    table = results_folder() / "overhead.md"
    command = [sys.executable, "-m", "benchmarks.overhead", "--device", "cuda", "--rounds", "4", "--seconds", "10"]
    done = subprocess.run(
        [*command, "--write", str(table)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    text = table.read_text(encoding="utf-8")
    compared = (TIER_2, HOST_MEMORY, PROFILER)
    assert all(f"| {loop}, {TIER_1.name} |" in text for loop in LOOPS), done.stderr
    assert all(f"| {loop}, {tier.name} |" in text for loop in COMPARED for tier in compared), done.stderr
    assert done.returncode == 0, f"a budget is not held: {text}"
