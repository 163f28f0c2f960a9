"""What recording costs on a CUDA device: the table of `make bench-overhead`, with the loops moved there."""

import subprocess
import sys

import pytest

from benchmarks.loops import LOOPS
from tests.gpu.cuda_runs import ROOT, needs_cuda, results_folder

pytestmark = [*needs_cuda, pytest.mark.timeout(900)]


def test_the_overhead_table_has_every_loop_on_the_device() -> None:
    table = results_folder() / "overhead.md"
    command = [sys.executable, "-m", "benchmarks.overhead", "--device", "cuda", "--rounds", "6"]
    done = subprocess.run(
        [*command, "--tools", "tier 1,bare", "--write", str(table)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = table.read_text(encoding="utf-8")
    assert all(f"| {loop}, tier 1" in text for loop in LOOPS), done.stderr
