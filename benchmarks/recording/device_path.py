"""What recording asks of a CUDA device in a step, counted on a simulated one: counts are the same on every device.

Their price is not: what an event or a query takes on a real device is tests/gpu's to measure.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Final
from unittest import mock

import torch

import efprof
from benchmarks.recording.loops import LOOPS
from benchmarks.recording.table import line
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.recorder.budget.sampling import EARLY_STEPS
from tests.simulated_cuda.cuda import SimulatedCuda

NUM_STEPS: Final = 300
WARM_UP: Final = EARLY_STEPS + 20
"""Up to there bursts come often."""
IN_FULL, HARDLY_ANY = "100%", "0.0000001%"
DEVICE_LOOPS: Final = ("mlp", "scaler", "accumulation", "gan")

PARTS: Final = {
    "kernel": "kernels",
    "copy to the host": "copies to the host",
    "Event.record": "events recorded",
    "Event": "of them made anew",
    "Event.query": "queries",
    "memory_stats": "memory statistics",
    "cudaHostAlloc": "pinned allocations",
}
HEADER = ("loop, on a simulated device", "steps", *PARTS.values(), "bytes written", "by its own clock")
DEVICE_HEAD = (
    "",
    "What a recorded step asks of a CUDA device beyond what a bare one asks, counted on a simulated one, and the bytes",
    "of steps.jsonl. By its own clock the recorder spends most of its time there in the simulation, which is Python.",
    "",
    line(HEADER),
    line(["---"] * len(HEADER)),
)


def device_lines() -> Iterator[str]:
    """Two lines of the table for each loop: of steps recorded in full, and of light ones."""
    for name in DEVICE_LOOPS:
        bare = _run(name, None)[0]
        for kind, overhead in (("full", IN_FULL), ("light", HARDLY_ANY)):
            calls, steps, num_bytes = _run(name, overhead)
            added = [f"{(calls[part] - bare[part]) / NUM_STEPS:.2f}" for part in PARTS]
            own_us = median(step.recorder_us for step in steps if step.is_full == (kind == "full"))
            yield line([name, kind, *added, f"{num_bytes / NUM_STEPS:.0f}", f"{own_us:.0f} us"])


def _run(name: str, overhead: str | None) -> tuple[Counter[str], list[StepRecord], int]:
    """The calls of NUM_STEPS steps after the first ones, what was recorded of them, and its bytes; bare where None."""
    torch.manual_seed(0)
    with SimulatedCuda().in_place() as cuda, tempfile.TemporaryDirectory() as home:
        loop = LOOPS[name](torch.device("cuda"))

        def train(num_steps: int) -> Counter[str]:
            before = Counter(cuda.calls)
            for _ in range(num_steps):
                loop.train(next(loop.batches))
            return Counter(cuda.calls) - before

        if overhead is None:
            train(WARM_UP)
            return train(NUM_STEPS), [], 0
        with (
            mock.patch.dict(os.environ, EFPROF_HOME=home),
            efprof.record(windows="none", overhead=overhead) as recording,
        ):
            lines = recording.folder / "rank0" / "steps.jsonl"
            train(WARM_UP)
            num_bytes = lines.stat().st_size
            calls = train(NUM_STEPS)
        return calls, read_steps(lines.parent)[0][WARM_UP:], lines.stat().st_size - num_bytes
