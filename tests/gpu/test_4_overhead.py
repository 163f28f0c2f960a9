"""What recording costs on a CUDA device: a part of the table of `make bench-overhead`, with the loops moved there.

All of it takes half an hour: `python -m benchmarks.overhead --device cuda`.
"""

import subprocess
import sys

from benchmarks.recording.variants import ALWAYS_ON, IN_WINDOW, PROFILER
from tests.gpu.cuda_runs import ROOT, needs_cuda, results_folder

pytestmark = needs_cuda

LOOPS = ("mlp", "energy_flow")
TOOLS = (ALWAYS_ON.name, IN_WINDOW.name, PROFILER.name)
SHORT = ("--loops", ",".join(LOOPS), "--tools", ",".join(TOOLS), "--rounds", "2", "--seconds", "10")


def test_the_overhead_table_has_the_loops_on_the_device() -> None:
    table = results_folder() / "overhead.md"
    command = [sys.executable, "-m", "benchmarks.overhead", "--device", "cuda", *SHORT, "--write", str(table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    text = table.read_text(encoding="utf-8")
    assert all(f"| {loop}, {tool} |" in text for loop in LOOPS for tool in TOOLS), done.stderr
    assert done.returncode == 0, f"a budget is not held: {text}"
