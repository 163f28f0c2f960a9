"""Made traces of a small training on a device, as torch's profiler writes them, and the real ones beside the clone."""

import gzip
import json
from pathlib import Path
from typing import Any

from efprof.artifacts.foreign import as_run
from efprof.facts.run.run import Run, open_run
from efprof.facts.time.rank_times import RankTimes

REAL = Path(__file__).parents[4] / "shared" / "data" / "traces"
MAIN, ENGINE, STREAM = (1, 1), (1, 2), (0, 7)
"""Process and thread, or device and stream."""


def event(
    name: str, start_us: float, length_us: float, category: str = "cpu_op", lane: tuple[int, int] = MAIN, **args: Any
) -> dict[str, Any]:
    """A complete event; arguments are spelled with `_` for a space."""
    arguments = {key.replace("_", " "): value for key, value in args.items()}
    pid, tid = lane
    times = {"ts": start_us, "dur": length_us}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **times, "args": arguments}


def launch(number: int, at_us: float) -> dict[str, Any]:
    return event("cudaLaunchKernel", at_us, 2, "cuda_runtime", correlation=number)


def kernel(number: int, at_us: float, length_us: float, name: str = "gemm") -> dict[str, Any]:
    return event(name, at_us, length_us, "kernel", STREAM, correlation=number)


def step(start_us: float = 0.0, number: int = 0, loader: str = "_SingleProcessDataLoaderIter") -> list[dict[str, Any]]:
    """One of 1000 us: 300 of data; forward in train.py:10; backward on the engine's thread; the optimizer.

    The device computes for 350 us and is idle until the first launch.
    """
    at, id_ = start_us, 10 * number
    frame = {"category": "python_function"}
    return [
        event(f"ProfilerStep#{number}", at, 1000, "user_annotation"),
        event("train.py(5): main", at, 1000, **frame),
        event(f"enumerate(DataLoader)#{loader}.__next__", at + 10, 300, "user_annotation"),
        event("train.py(10): forward", at + 320, 200, **frame),
        event("nn.Module: Net_0", at + 330, 180, **frame),
        event("aten::linear", at + 340, 100, Sequence_number=5 + number, Input_Dims=[[8, 4]]),
        launch(id_ + 1, at + 400),
        kernel(id_ + 1, at + 410, 100),
        event("torch/_tensor.py(600): backward", at + 530, 300, **frame),
        event(
            "autograd::engine::evaluate_function: AddmmBackward0", at + 550, 250, lane=ENGINE,
            Sequence_number=5 + number, Fwd_thread_id=1,
        ),
        {**launch(id_ + 2, at + 600), "tid": 2},
        kernel(id_ + 2, at + 610, 200),
        event("Optimizer.step#SGD.step", at + 850, 100, "user_annotation"),
        event("aten::add_", at + 860, 50),
        launch(id_ + 3, at + 870),
        kernel(id_ + 3, at + 880, 50),
    ]  # fmt: skip


def slower(factor: int, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """The same, so many times as long."""
    return [{**one, "ts": one["ts"] * factor, "dur": one["dur"] * factor} for one in events]


def write(path: Path, *events: dict[str, Any], rank: int | None = None, **distributed: Any) -> Path:
    header = {"distributedInfo": {"rank": rank, **distributed}} if rank is not None else {}
    whole = {"deviceProperties": [{"id": 0, "name": "Pretended GPU"}], **header, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    return path


def run_of(path: Path) -> Run:
    """The trace in that file as a run."""
    with as_run(path) as made:
        run = open_run(made)
        run.get(RankTimes)
        return run


def foreign_run(folder: Path, *events: dict[str, Any]) -> Run:
    return run_of(write(folder / "trace.json.gz", *events))
