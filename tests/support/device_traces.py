"""Small traces of a GPU, as torch's profiler writes them, for tests that need one of a given shape."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.foreign import as_run
from efprof.facts.run.run import Run, open_run
from efprof.model import Examination, Finding
from tests.support.builders import START_NS, TraceEvents, trace_event

REAL_TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
"""Other people's, which the repository does not hold."""
has_real_traces = pytest.mark.skipif(not REAL_TRACES.exists(), reason=f"needs the traces in {REAL_TRACES}")

Events = list[dict[str, Any]]


def step(number: int, start_ms: float, length_ms: float) -> dict[str, Any]:
    """The profiler's own label of a step."""
    return trace_event(f"ProfilerStep#{number}", start_ms, length_ms, category="user_annotation")


def operator(name: str, start_ms: float, length_ms: float, **args: Any) -> dict[str, Any]:
    return trace_event(name, start_ms, length_ms, category="cpu_op", **args)


def call(frame: str, start_ms: float, length_ms: float) -> dict[str, Any]:
    """A Python function, `train.py(12): step`."""
    return trace_event(frame, start_ms, length_ms)


def runtime(name: str, start_ms: float, length_ms: float, correlation: int = -1) -> dict[str, Any]:
    """A call of CUDA's runtime."""
    return trace_event(name, start_ms, length_ms, category="cuda_runtime", correlation=correlation)


def kernel(
    name: str, start_ms: float, length_ms: float, correlation: int, *, stream: int = 7, **args: Any
) -> dict[str, Any]:
    """What a stream of the device does."""
    found = trace_event(name, start_ms, length_ms, category="kernel", thread=stream, correlation=correlation, **args)
    return found | {"pid": 0}


def launched(
    name: str, launch_ms: float, begin_ms: float, length_ms: float, correlation: int, **args: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A kernel and its launch, which takes 4 us."""
    return (
        runtime("cudaLaunchKernel", launch_ms, 0.004, correlation),
        kernel(name, begin_ms, length_ms, correlation, **args),
    )


@contextmanager
def foreign_run(folder: Path, *ranks: TraceEvents, distributed: Sequence[dict[str, Any]] = ()) -> Iterator[Run]:
    """The trace of each rank as files from elsewhere."""
    paths = []
    for number, events in enumerate(ranks):
        header = {"distributedInfo": distributed[number]} if distributed else {}
        paths.append(folder / f"rank{number}.json")
        content = json.dumps({"baseTimeNanoseconds": START_NS, **header, "traceEvents": list(events)})
        paths[-1].write_text(content)
    with as_run(*paths) as run_folder:
        yield open_run(run_folder)


def found_by(
    audit: Callable[[Run], Examination], folder: Path, *ranks: TraceEvents, **fields: Any
) -> Sequence[Finding]:
    """What an audit finds in the trace of each rank."""
    with foreign_run(folder, *ranks, **fields) as run:
        return audit(run).findings


@contextmanager
def real_run(*names: str) -> Iterator[Run]:
    """Of other people's traces, by the beginning of their names."""
    with as_run(*(next(REAL_TRACES.glob(f"{name}*")) for name in names)) as run_folder:
        yield open_run(run_folder)
