"""Turns torch.profiler on for a few steps at a time; allocations with their lines come with it."""

import cProfile
import errno
import functools
import gc
import gzip
import os
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from efprof.artifacts.events import CollectorStopped, WindowClosed, WindowOpened
from efprof.artifacts.steps import StepRecord
from efprof.recorder.allocation_rows import WindowEvents
from efprof.recorder.call_sites import CallSites
from efprof.recorder.hooks import Undo, replace
from efprof.recorder.open_step import OpenStep
from efprof.recorder.operators import watch_operators
from efprof.recorder.session import Session
from efprof.recorder.triggers import TRIGGERED_STEPS, Triggers

MAX_DATA_MS = 20.0
"""A step that fetched its batch for longer did so in Python, in this process: the profiler would record every call
of it (half a million for one batch of text, 25 s to write, measured). Such a window starts after the fetch."""

SEVERAL_THREADS = "several threads make the steps, and a window sees one alone"


class Windows:
    """At most one window is open; each is written as soon as it closes, so that a crash costs one at most."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._planned = {start: (end, "schedule") for start, end in session.options.trace_steps if end > start}
        self._triggers = Triggers(session.options.triggers, session.window_requests)
        self._profiler: torch.profiler.profile | None = None
        self._opener: threading.Thread | None = None
        """The thread that started it, and the only one that can read it: torch crashes where another one does."""
        self._left_on: torch.profiler.profile | None = None
        self._may_open = True
        self._first = 0
        self._end = 0
        self._why = ""
        self._count = 0
        self._seconds = 0.0
        self._last: StepRecord | None = None
        self._is_opening = False
        self._profile_function: object = None
        self._operators: list[Undo] = []

    def begin(self, step: OpenStep) -> None:
        """Open a window that starts at this step, unless the program is profiling itself."""
        self._stop_left_on()
        if self._profiler is None and self._may_open:
            if self._triggers.requests and step.window is None:
                self._plan_triggered(step.number)
            if step.number in self._planned and _data_ms(self._last) <= MAX_DATA_MS:
                self._session.loop.disturb()
                self._open(step, *self._planned[step.number])
        if self._profiler is not None:
            step.window = self._name

    def begin_after_fetch(self, step: OpenStep) -> None:
        """Open a window of this one step, less the fetch that was too long to be in it."""
        if self._profiler is None and step.number in self._planned and step.window is None:
            _, why = self._planned[step.number]
            self._open(step, step.number + 1, f"{why}, without the data stage")
            step.window = self._name if self._profiler is not None else None

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        """Close the window after its last step."""
        self._last = record
        self._triggers.note(record)
        if self._profiler is not None and step.number + 1 >= self._end:
            self._close(step.number)

    def note_length(self, number: int, total_us: float) -> None:
        """A short step ended while no window was open."""
        self._triggers.note_length(number, total_us)

    def drop(self, step: OpenStep) -> None:
        """What was fetched fed an evaluation, which may be long: keep the steps so far, or wait for the next one."""
        if self._profiler is None:
            return
        if step.number > self._first:
            self._close(step.number - 1)
            return
        if not self.is_opener:
            self._lose(step.number)
            return
        self._planned[step.number + 1] = self._end + 1, self._why
        self._discard(step.number)

    def yield_to_program(self) -> None:
        """The program starts a profiler of its own, which would raise while ours is on."""
        self._stop_left_on()
        if self._profiler is not None and not self._is_opening:
            self._close(self._session.step_number)
            self._note_stopped(
                self._session.step_number, "the program began to profile itself, so a window ended early"
            )

    def end(self) -> None:
        """The program ends inside a window: keep what it has."""
        if self._profiler is not None:
            self._close(self._session.step_number)
        if self._left_on is not None:
            self._left_on.stop()  # torch would crash as the process ends

    @property
    def is_opener(self) -> bool:
        """Whether it was the calling thread that opened the last window."""
        return threading.current_thread() is self._opener

    @property
    def _name(self) -> str:
        return f"trace-{self._count}"

    def _plan_triggered(self, number: int) -> None:
        """At this step, where it may be; otherwise the request waits."""
        memory_steps = self._session.options.memory_steps if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        scheduled = [(start, end) for start, (end, _) in self._planned.items()]
        why = None if _is_profiling_itself() else self._triggers.take(number, [*scheduled, *memory_steps])
        if why is not None:
            self._planned[number] = number + TRIGGERED_STEPS, why

    def _open(self, step: OpenStep, end: int, why: str) -> None:
        del self._planned[step.number]
        if self._session.loop.has_turns:
            self._give_up(step.number)
            return
        if _is_profiling_itself():
            reason = "the program was profiling itself when a window was due, so that window was left out"
            self._note_stopped(step.number, reason)
            return
        self._count += 1
        self._first, self._end, self._why = step.number, end, why
        self._session.note(WindowOpened(at_ns=time.time_ns(), step=step.number, window=self._name, why=why))
        with ExitStack() as interrupted:  # by Ctrl-C most of all: one left on takes more memory with every step
            interrupted.callback(self._discard, step.number)
            self._start_profiler()
            interrupted.pop_all()

    def _start_profiler(self) -> None:
        start, self._is_opening = time.perf_counter(), True
        try:
            self._profiler = torch.profiler.profile(
                record_shapes=True,
                with_stack=True,
                profile_memory=True,
                with_modules=True,
                experimental_config=_config(),
            )
            self._opener = threading.current_thread()
            self._profiler.start()
            self._operators = watch_operators()
        finally:
            self._is_opening = False
            self._profile_function = sys.getprofile()
            self._seconds = time.perf_counter() - start

    def _note_stopped(self, number: int, reason: str) -> None:
        self._session.note(CollectorStopped(at_ns=time.time_ns(), step=number, collector="windows", reason=reason))

    def _discard(self, number: int) -> None:
        if torch._C._autograd._profiler_enabled():  # not where its start failed
            self._stop().profiler = None
        self._profiler = None
        self._note_closed(number, self._seconds, [])

    def _give_up(self, number: int) -> None:
        """Open no more windows."""
        self._may_open = False
        self._planned.clear()
        self._note_stopped(number, SEVERAL_THREADS)

    def _lose(self, last: int) -> None:
        """The steps of the window went on in another thread: leave it to the one that opened it."""
        self._left_on, self._profiler = self._profiler, None
        self._session.loop.disturb()
        self._take_operators_out()
        self._note_closed(last, self._seconds, [])
        self._give_up(last)

    def _stop_left_on(self) -> None:
        """Where the thread that opened it goes on, or is no more."""
        if self._left_on is not None and (self.is_opener or not (self._opener and self._opener.is_alive())):
            self._left_on.stop()
            self._left_on = None

    def _take_operators_out(self) -> None:
        while self._operators:
            self._operators.pop()()

    def _close(self, last: int) -> None:
        if not self.is_opener:
            self._lose(last)
            return
        start = time.perf_counter()
        files = self._write_all(self._stop())
        self._note_closed(last, self._seconds + time.perf_counter() - start, files)

    def _note_closed(self, last: int, seconds: float, files: list[str]) -> None:
        self._session.note(
            WindowClosed(at_ns=time.time_ns(), step=last, window=self._name, seconds=seconds, files=files)
        )

    def _stop(self) -> torch.profiler.profile:
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        self._session.loop.disturb()
        self._take_operators_out()
        of_program = sys.getprofile()
        profiler.stop()
        if of_program is not self._profile_function:  # set meanwhile; torch takes out whatever is there
            _set_profile_again(of_program)
        return profiler

    def _write_all(self, profiler: torch.profiler.profile) -> list[str]:
        """Write the window's files with the garbage collector off, and give back what the profiler held."""
        was_on = gc.isenabled()
        gc.disable()  # a window makes millions of objects and no garbage; collecting meanwhile doubles its time
        try:
            return self._write(profiler)
        finally:
            profiler.profiler = None
            if was_on:
                gc.enable()
                gc.collect()  # profilers are in reference cycles: without this, hundreds of MiB stay allocated

    def _write(self, profiler: torch.profiler.profile) -> list[str]:
        folder, sites = self._session.rank_folder, self._session.sites
        results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
        calls = CallSites(sites)
        events = WindowEvents(calls, _current_device())
        events.walk(results.experimental_event_tree())
        trace = folder / f"{self._name}.json.gz"
        _write_trace(profiler, trace, calls)
        allocations = folder / f"allocations-{self._count}.parquet"
        events.write_allocations(allocations)
        return [trace.name, allocations.name]


def start(session: Session) -> None:
    """Watch the steps for the ones that a window begins or ends with, and for what calls for one."""
    if session.options.trace_steps or session.options.triggers:
        windows = Windows(session)
        session.subscribe(session.loop.step_began, "windows", windows.begin)
        session.subscribe(session.loop.fetched, "windows", windows.begin_after_fetch)
        session.subscribe(session.loop.step_dropped, "windows", windows.drop)
        session.subscribe(session.loop.step_ended, "windows", windows.finish)
        if session.options.triggers:
            session.subscribe(session.loop.steps.added, "windows", windows.note_length)
        session.on_end("windows", windows.end)
        session.undo_at_end([_watch_profilers(session, windows)])


def _watch_profilers(session: Session, windows: Windows) -> Undo:
    """Every torch profiler, old and new, starts by constructing this class."""
    original = torch.autograd.profiler.profile.__init__
    begins = session.shell.guarded("windows", windows.yield_to_program)

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        if session.loop.is_ours or windows.is_opener:
            begins()
        original(self, *args, **kwargs)

    return replace(torch.autograd.profiler.profile, "__init__", construct)


def _current_device() -> torch.device | None:
    """The one whose memory every step is read from; None where that is the host."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _set_profile_again(function: Any) -> None:
    if isinstance(function, cProfile.Profile):
        function.enable()
    elif callable(function):
        sys.setprofile(function)


def _is_profiling_itself() -> bool:
    return torch._C._autograd._profiler_enabled() or sys.getprofile() is not None


def _data_ms(record: StepRecord | None) -> float:
    """Milliseconds that a step fetched its batch for."""
    spans = [] if record is None else record.spans
    return sum(span.end_us - span.start_us for span in spans if span.stage == "data") / 1000


def _write_trace(profiler: torch.profiler.profile, path: Path, calls: CallSites) -> None:
    raw, whole = path.with_name(f".{path.name}.raw.json"), path.with_name(f".{path.name}.part")
    try:
        profiler.export_chrome_trace(str(raw))
        trace = raw.read_bytes() if raw.exists() else b""
        if not trace.rstrip().endswith(b"}"):  # the profiler's library only logs that it could not write
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole.write_bytes(gzip.compress(calls.add_to(trace), compresslevel=1, mtime=0))
        whole.rename(path)
    finally:
        for temporary in path.parent.glob(f".{path.name}.*"):  # the profiler's library has one of its own
            temporary.unlink(missing_ok=True)


def _config() -> torch._C._profiler._ExperimentalConfig | None:
    """Synchronisation events on the device, which the profiler leaves out by default."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    with suppress(TypeError):  # an older torch does not know the setting
        return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    return None
