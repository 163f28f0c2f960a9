"""Turns torch.profiler on and off for one window, and writes what it saw."""

import cProfile
import ctypes
import errno
import functools
import gc
import gzip
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from efprof.artifacts.files import no_garbage_collection
from efprof.recorder.hooks.patching import MethodWrapper, Undo, replace
from efprof.recorder.loop.device import Memory
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import RankFolder, written_whole
from efprof.recorder.windows.allocation_rows import CallSites, WindowEvents
from efprof.recorder.windows.step_events import MAX_EVENTS, MAX_MORE, MIN_EVENTS

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")

OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert")
"""Not `getitem` and `setitem`: with these Python fills C slots of a sequence too and never empties them, and
`torch.tensor([a tensor of no dimension])` raises from then on."""

OPERATORS = (
    *(f"__{prefix}{name}__" for name in BINARY for prefix in ("", "r", "i")),
    *(f"__{name}__" for name in OTHERS),
)

DRAIN_S = 0.05
"""The threads of a process group may still be ending what they record, and torch frees the record under them: a use
after it is freed (pytorch PR 187483 waits for such threads, though not for these). A rank crashed as a window ended,
once in several hundred."""


ERROR = 2
"""In torch's C++ log, the level from which no warning is printed."""

LONGEST_END = 64
"""Bytes from which it shows whether a trace is whole."""


class Planned(NamedTuple):
    """A window that is to open: up to which step, and why."""

    end: int
    why: str = "schedule"
    is_lean: bool = False
    """Whether it has only operators."""
    is_alone: bool = True
    """Whether no full one stands before it, which a lean one has its name from."""
    skips_fetch: bool = False
    num_events: int = 0
    """As reckoned; 0 where the user asked for it, whatever its size."""


class ProfiledWindow:
    """One window, from the step `first` to the one before that which its plan ends at."""

    def __init__(
        self, planned: Planned, *, number: int, first: int, loop: Loop, memory: Memory, folder: RankFolder, sites: Sites
    ) -> None:
        self.name = f"{'trace' if planned.is_alone else 'lean'}-{number}"
        self.planned = planned
        self.is_lean = planned.is_lean or not can_have_stacks()
        self.first = first
        self.end = planned.end
        self.num_events = 0
        """That it had, once it is written."""
        self.is_starting = False
        self.is_shared = False
        self.start_seconds = 0.0
        self._loop, self._memory, self._folder, self._sites = loop, memory, folder, sites
        self._number = number
        self._profiler: torch.profiler.profile | None = None
        self._opener: threading.Thread | None = None
        """The thread that started it, and the only one that can read it: torch crashes where another one does."""
        self._profile_function: object = None
        self._operators: list[Undo] = []

    @property
    def is_opener(self) -> bool:
        return threading.current_thread() is self._opener

    @property
    def may_be_ended(self) -> bool:
        """Whether the thread that turned the profiler on is the calling one, or is no more."""
        return self.is_opener or not (self._opener and self._opener.is_alive())

    def start(self) -> None:
        start, self.is_starting = time.perf_counter(), True
        # Synchronisation events on the device, which the profiler leaves out by default.
        has_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True) if has_device else None
        try:
            self._profiler = torch.profiler.profile(
                record_shapes=not self.is_lean,
                with_stack=not self.is_lean,
                profile_memory=not self.is_lean,
                experimental_config=config,
                acc_events=True,  # else torch 2.11 warns that of several cycles the last is kept
            )
            self._opener = threading.current_thread()
            start_without_line(self._profiler.start)
            own: Any = self._profiler.profiler
            own.acc_events = False  # which would have every event made a Python object at the window's end
            self._operators = [] if self.is_lean else watch_operators()
        finally:
            self.is_starting = False
            self._profile_function = sys.getprofile()
            self.start_seconds = time.perf_counter() - start

    def write(self) -> list[str]:
        """Turn the profiler off, write the window's files with the garbage collector off, and give back what the
        profiler held; the files' names: none where it has far more events than was reckoned.
        """
        profiler = self._stop()
        try:
            with no_garbage_collection():
                return self._write(profiler)
        finally:
            self._give_back(profiler)

    def discard(self) -> None:
        if not self.is_opener:
            self.turn_off()
        elif torch._C._autograd._profiler_enabled():  # not where its start failed
            self._give_back(self._stop())

    def _give_back(self, profiler: torch.profiler.profile) -> None:
        profiler.profiler = None
        if gc.isenabled() and not self.is_lean:
            self._memory.is_collecting = True
            gc.collect()  # profilers are in reference cycles: without this, hundreds of MiB stay, of a lean one few
            self._memory.is_collecting = False

    def look_away(self) -> None:
        """Of all that Python calls from here on, which is the opener's doing; the rest is to be dropped."""
        if sys.getprofile() is self._profile_function:
            sys.setprofile(None)

    def take_operators_out(self) -> None:
        while self._operators:
            self._operators.pop()()

    def _stop(self) -> torch.profiler.profile:
        self._loop.mark_interrupted()
        self.take_operators_out()
        of_program: Any = sys.getprofile()
        profiler = self.turn_off()
        if of_program is not self._profile_function:  # set meanwhile; torch takes out whatever is there
            if isinstance(of_program, cProfile.Profile):
                of_program.enable()
            elif callable(of_program):
                sys.setprofile(of_program)
        return profiler

    def turn_off(self) -> torch.profiler.profile:
        profiler = self._profiler
        assert profiler is not None
        own: Any = profiler.profiler
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            time.sleep(DRAIN_S)
        if self.is_shared and own is not None:
            # A process has one session of profiling: the other profiler took it over and ended it, and torch crashes
            # where there is none to end.
            torch._C._autograd._prepare_profiler(own.config(), own.kineto_activities)
        profiler.stop()
        return profiler

    def _write_trace(self, profiler: torch.profiler.profile) -> list[str]:
        path = self._folder.path / f"{self.name}.json.gz"
        raw = path.with_name(f".{path.name}.raw.json")
        try:
            raw.touch()
            profiler.export_chrome_trace(str(raw))
            with written_whole(path) as whole, raw.open("rb") as trace, whole.open("wb") as packed:
                trace.seek(-min(raw.stat().st_size, LONGEST_END), os.SEEK_END)
                if not trace.read().rstrip().endswith(b"}"):  # the profiler's library only logs that it could not write
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                trace.seek(0)
                with gzip.GzipFile("", "wb", compresslevel=1, fileobj=packed, mtime=0) as file:
                    shutil.copyfileobj(trace, file)
        finally:
            for temporary in path.parent.glob(f".{path.name}.*"):  # the profiler's library has one of its own
                temporary.unlink(missing_ok=True)
        return [path.name]

    def _write(self, profiler: torch.profiler.profile) -> list[str]:
        """Write the trace, and of a full window the lines of its calls and what they allocated."""
        results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
        reckoned = self.planned.num_events
        most = min(MAX_EVENTS, max(MIN_EVENTS, MAX_MORE * reckoned)) if reckoned else sys.maxsize
        if self.is_lean:
            self.num_events = len(results.events())
            return self._write_trace(profiler) if self.num_events <= most else []
        calls = CallSites(self._sites)
        device = self._memory.device.index  # the one whose memory every step is read from; None where that is the host
        events = WindowEvents(calls, None if device is None else torch.device("cuda", device))
        self.num_events = events.walk(results.experimental_event_tree(), most)
        if self.num_events > most:
            return []
        lines = self._folder.path / f"sites-{self._number}.parquet"
        calls.write(lines)
        traces = self._write_trace(profiler)
        allocations = self._folder.path / f"allocations-{self._number}.parquet"
        events.write_allocations(allocations)
        return [*traces, lines.name, allocations.name]


def start_without_line(start: Callable[[], None]) -> None:
    """Start the profiler, and free a block of our own that is older while the C++ log leaves warnings out.

    torch counts such blocks in each process and logs the first of every 1,000. A training frees few of them in its
    windows: 1 to 22, measured on seven programs.
    """
    # By no operator: a mode of the program's would see one.
    block = torch.UntypedStorage(1)  # type: ignore[no-untyped-call]
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(torch._C.__file__), "FLAGS_caffe2_log_level")
    except ValueError:  # a torch that is built in another way
        level = ctypes.c_int()
    start()
    before, level.value = level.value, max(level.value, ERROR)
    del block
    level.value = before


def can_have_stacks() -> bool:
    """False where the program has put a function of its own in the place of `Module.__call__`, without a local `self`:
    torch's profiler reads that of each call, and crashes.
    """
    code = getattr(torch.nn.Module.__call__, "__code__", None)
    return code is None or code.co_varnames[:1] == ("self",)


def end_without_destructors() -> None:
    """Have this forked child leave C++'s globals as they are when it ends: once a window was open one of them, of the
    profiler, waits for a thread that a fork does not copy. What comes last here is called first.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)


def is_profiling() -> bool:
    if sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.PROFILER_ID):  # there cProfile is
        return True
    return torch._C._autograd._profiler_enabled() or sys.getprofile() is not None


def is_running(profiler: Any) -> bool:
    """Whether what `torch.autograd.profiler.profile` constructed was started, in whatever thread, and goes on."""
    return getattr(profiler, "entered", False) and profiler.kineto_results is None


def watch_operators() -> list[Undo]:
    """Replace the operators of torch.Tensor by functions that call them, while a window is open.

    torch's profiler knows the line of a Python call; an operator is none, and what it allocates would be blamed on the
    call around it. Who asks for one gets the original, as torch does to tell a subclass which one was called.
    """
    names = [name for name in OPERATORS if hasattr(torch.Tensor, name)]
    originals = {name: getattr(torch.Tensor, name) for name in names}
    return [replace(torch.Tensor, name, MethodWrapper(_called(one), one)) for name, one in originals.items()]


def _called(operator: Any) -> Any:
    @functools.wraps(operator)
    def call(*operands: Any, **options: Any) -> Any:
        return operator(*operands, **options)

    return call
