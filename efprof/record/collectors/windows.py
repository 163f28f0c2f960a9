"""Turns torch.profiler on for a few steps at a time; where there is no CUDA, CPU allocations come with it."""

import gzip
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch

from efprof.artifacts.events import WindowClosed, WindowOpened
from efprof.artifacts.steps import StepRecord
from efprof.record.allocation_rows import write_allocations
from efprof.record.call_sites import add_call_sites, python_calls
from efprof.record.loop import OpenStep
from efprof.record.session import Session


class Windows:
    """At most one window is open; each is written as soon as it closes, so that a crash costs one at most."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ranges = {start: end for start, end in session.options.windows if end > start}
        self._profiler: torch.profiler.profile | None = None
        self._end = 0
        self._count = 0
        self._seconds = 0.0

    def begin(self, step: OpenStep) -> None:
        """Open a window that starts at this step, unless the program is profiling itself."""
        if self._profiler is None and step.number in self._ranges:
            if torch._C._autograd._profiler_enabled():
                return
            self._open(step.number, self._ranges[step.number])
        if self._profiler is not None:
            step.window = self._name

    def finish(self, step: OpenStep, _: StepRecord) -> None:
        """Close the window after its last step."""
        if self._profiler is not None and step.number + 1 >= self._end:
            self._close(step.number)

    def end(self) -> None:
        """The program ends inside a window: keep what it has."""
        if self._profiler is not None:
            self._close(self._session.step_number)

    @property
    def _name(self) -> str:
        return f"trace-{self._count}"

    def _open(self, first: int, end: int) -> None:
        start = time.perf_counter()
        self._count += 1
        self._end = end
        self._session.loop.disturb()
        self._session.note(WindowOpened(at_ns=time.time_ns(), step=first, window=self._name, why="schedule"))
        self._profiler = torch.profiler.profile(
            record_shapes=True, with_stack=True, profile_memory=True, with_modules=True, experimental_config=_config()
        )
        self._profiler.start()
        self._seconds = time.perf_counter() - start

    def _close(self, last: int) -> None:
        start = time.perf_counter()
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        self._session.loop.disturb()
        profiler.stop()
        files = self._write(profiler)
        seconds = self._seconds + time.perf_counter() - start
        self._session.note(
            WindowClosed(at_ns=time.time_ns(), step=last, window=self._name, seconds=seconds, files=files)
        )

    def _write(self, profiler: torch.profiler.profile) -> list[str]:
        folder = self._session.rank_folder()
        trace = folder / f"{self._name}.json.gz"
        results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
        roots = results.experimental_event_tree()
        _write_trace(profiler, trace, python_calls(roots, self._session.sites))
        if torch.cuda.is_available():
            return [trace.name]
        allocations = folder / f"allocations-{self._count}.parquet"
        write_allocations(allocations, roots, self._session.sites)
        return [trace.name, allocations.name]


def start(session: Session) -> None:
    """Watch the steps for the ones that a window begins or ends with."""
    if session.options.windows:
        windows = Windows(session)
        session.subscribe(session.loop.step_began, "windows", windows.begin)
        session.subscribe(session.loop.step_ended, "windows", windows.finish)
        session.on_end("windows", windows.end)


def _write_trace(profiler: torch.profiler.profile, path: Path, calls: dict[tuple[int, str], str]) -> None:
    raw, whole = path.with_name(f".{path.name}.raw.json"), path.with_name(f".{path.name}.part")
    try:
        profiler.export_chrome_trace(str(raw))
        trace = msgspec.json.decode(raw.read_bytes())
        add_call_sites(trace, calls)
        whole.write_bytes(gzip.compress(msgspec.json.encode(trace), compresslevel=3, mtime=0))
        whole.rename(path)
    finally:
        for temporary in (raw, whole):
            temporary.unlink(missing_ok=True)


def _config() -> torch._C._profiler._ExperimentalConfig | None:
    """Synchronisation events on the device, which the profiler leaves out by default."""
    if not torch.cuda.is_available():
        return None
    with suppress(TypeError):  # an older torch does not know the setting
        return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    return None
