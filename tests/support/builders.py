"""Small run folders, written as the recorder writes them, for tests that need a run of a given shape."""

import gzip
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from efprof.artifacts.allocations import ALLOCATION_COLUMNS, SEPARATOR, AllocationEvent
from efprof.artifacts.events import EVENTS_FILE, Event, LoaderBuilt
from efprof.artifacts.holders import Count, Watch
from efprof.artifacts.run_file import SCHEMA_VERSION, SOURCES_FILE, Device, Host, RunFile, SourceText, write_run_file
from efprof.artifacts.snapshot import Snapshot
from efprof.artifacts.steps import STEPS_FILE, BoundaryMemory, StageSpan, StepRecord
from efprof.artifacts.trace.columns import Trace
from efprof.facts.run.run import Run, open_run
from efprof.model import BOUNDARIES

START_NS = 1_700_000_000_000_000_000
GPU = Device(index=0, name="NVIDIA H200", total_bytes=150_000_000_000)

TraceEvents = Sequence[Mapping[str, Any]]


def write_run(
    folder: Path,
    *,
    steps: Iterable[StepRecord] = (),
    events: Iterable[Event] = (),
    sources: Mapping[str, str] | None = None,
    traces: Sequence[TraceEvents] = (),
    allocations: Sequence[Iterable[AllocationEvent]] = (),
    counts: Iterable[Count] = (),
    watches: Iterable[Watch] = (),
    snapshots: Iterable[Snapshot] = (),
    num_cpus: int = 8,
    **run_fields: Any,
) -> Run:
    """Write a run folder of one rank and open it; `run_fields` replace fields of run.json."""
    rank = folder / "rank0"
    rank.mkdir(parents=True)
    write_run_file(folder, make_run_file(num_cpus=num_cpus, **run_fields))
    _write_lines(rank / STEPS_FILE, steps)
    _write_lines(rank / EVENTS_FILE, events)
    _write_lines(rank / SOURCES_FILE, [SourceText(file=name, text=text) for name, text in (sources or {}).items()])
    for number, trace in enumerate(traces, start=1):
        write_trace(rank, number, trace)
    for number, window in enumerate(allocations, start=1):
        write_allocations(rank, number, window)
    for number, count in enumerate(counts, start=1):
        (rank / f"holders-{number}.json").write_bytes(msgspec.json.encode(count))
    for number, watch in enumerate(watches, start=1):
        (rank / f"watch-{number}.json").write_bytes(msgspec.json.encode(watch))
    for number, snapshot in enumerate(snapshots, start=1):
        write_snapshot(rank / f"memory-{number}.pickle", snapshot)
    return open_run(folder)


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """As torch writes it."""
    path.write_bytes(pickle.dumps(msgspec.to_builtins(snapshot, builtin_types=(tuple,)), protocol=4))


def make_run_file(*, num_cpus: int = 8, **fields: Any) -> RunFile:
    """A finished CPU run; any field can be given."""
    defaults: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": "20260101-120000-train-abc123",
        "name": "train",
        "command": ["python", "train.py"],
        "working_folder": "/home/user/project",
        "started": "2026-01-01T12:00:00+00:00",
        "host": Host(name_hash="0f3a", cpu="AMD EPYC", num_cpus=num_cpus, total_bytes=16 * 1024**3),
        "ended": "finished",
        "exit_code": 0,
        "duration_s": 12.5,
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "memory_source": "C allocator",
    }
    return RunFile(**{**defaults, **fields})


def make_step(
    step: int,
    *,
    data_ms: float = 1.0,
    forward_ms: float = 4.0,
    backward_ms: float = 8.0,
    optimizer_ms: float = 2.0,
    other_ms: float = 0.5,
    allocated_bytes: Sequence[int] = (100_000, 400_000, 400_000, 300_000, 100_000),
    **fields: Any,
) -> StepRecord:
    """One step with its stages one after the other; `allocated_bytes` are those at the five boundaries."""
    lengths_us = [ms * 1000 for ms in (data_ms, forward_ms, backward_ms, optimizer_ms)]
    ends_us = [sum(lengths_us[: index + 1]) for index in range(4)]
    names = ("data", "forward", "backward", "optimizer")
    at_us = (ends_us[0], ends_us[1], ends_us[1], ends_us[2], ends_us[3])
    total_us = ends_us[-1] + other_ms * 1000
    defaults: dict[str, Any] = {
        "step": step,
        "started_ns": START_NS + step * 1_000_000_000,
        "total_us": total_us,
        "spans": [
            StageSpan(name, end - length, end) for name, length, end in zip(names, lengths_us, ends_us, strict=True)
        ],
        "memory": [
            BoundaryMemory(name, at, size, 2 * size)
            for name, at, size in zip(BOUNDARIES, at_us, allocated_bytes, strict=False)
        ],
        "cpu_us": total_us,
        "rss_bytes": 500_000_000,
        "micro_batches": 1,
        "samples": 16,
        "recorder_us": 20.0,
        "loss": 1.0 / (step + 1),
        "backward_site": "train.py:10:main",
    }
    return StepRecord(**{**defaults, **fields})


def on_device(step: StepRecord, *stages_ms: float, total_ms: float) -> StepRecord:
    """The same step on a device, which took so long for its stages, and for all of it."""
    for span, device_ms in zip(step.spans, stages_ms, strict=True):
        span.device_us = device_ms * 1000
    step.device_us = total_ms * 1000
    return step


def make_busy_step(step: int, **fields: Any) -> StepRecord:
    """One of 11.7 ms on the host and the device, whose forward pass keeps that busy: it is idle for 0.2 ms at most."""
    return on_device(make_step(step, forward_ms=0.2, **fields), 0.0, 11.7, 0.0, 0.0, total_ms=11.7)


def make_steps(count: int, **fields: Any) -> list[StepRecord]:
    """`count` steps; a field given as a function is called with each step's number."""
    return [
        make_step(step, **{name: value(step) if callable(value) else value for name, value in fields.items()})
        for step in range(count)
    ]


def loader_built(**fields: Any) -> LoaderBuilt:
    """A loader without workers, built at line 5 of train.py before the first step."""
    defaults: dict[str, Any] = {
        "at_ns": START_NS,
        "step": 0,
        "loader": 1,
        "site": "train.py:5:main",
        "num_workers": 0,
        "batch_size": 16,
        "persistent_workers": False,
        "num_batches": 100,
    }
    return LoaderBuilt(**{**defaults, **fields})


def trace_event(
    name: str, start_ms: float, duration_ms: float, *, category: str = "python_function", thread: int = 1, **args: Any
) -> dict[str, Any]:
    """A complete event that begins `start_ms` after START_NS; `call_site` is spelled as the recorder does."""
    if "call_site" in args:
        args["Call site"] = args.pop("call_site")
    times = {"ts": start_ms * 1000, "dur": duration_ms * 1000}
    return {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": thread, **times, "args": args}


def write_trace(rank_folder: Path, number: int, events: TraceEvents) -> None:
    """Write `trace-<number>.json.gz`."""
    content = json.dumps({"baseTimeNanoseconds": START_NS, "traceEvents": list(events)})
    (rank_folder / f"trace-{number}.json.gz").write_bytes(gzip.compress(content.encode()))


def write_allocations(rank_folder: Path, number: int, events: Iterable[AllocationEvent]) -> None:
    """Write `allocations-<number>.parquet`."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        {
            name: SEPARATOR.join(value) if isinstance(value, tuple) else value
            for name, value in ((column, getattr(event, column)) for column in ALLOCATION_COLUMNS)
        }
        for event in events
    ]
    columns = {name: [row[name] for row in rows] for name in ALLOCATION_COLUMNS}
    parquet.write_table(pyarrow.table(columns), rank_folder / f"allocations-{number}.parquet")


def _write_lines(path: Path, records: Iterable[msgspec.Struct]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def named(trace: Trace, name: str) -> list[int]:
    """The events of that name in a trace."""
    return [event for event in range(len(trace)) if trace.text(event) == name]
