"""Records the CUDA allocator's history in windows, the first from before the model is built; dumps it out of memory.

Never run on a GPU so far: the machine this was written on has none.
"""

import functools
import inspect
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from efprof.artifacts.events import CollectorStopped, WindowClosed, WindowOpened
from efprof.artifacts.garbage import no_garbage_collection
from efprof.artifacts.steps import StepRecord
from efprof.recorder.hooks import Undo, replace
from efprof.recorder.open_step import OpenStep
from efprof.recorder.options import DEFAULT_MEMORY_STEPS
from efprof.recorder.session import Session
from efprof.recorder.triggers import TRIGGERED_STEPS, MemoryPeaks
from efprof.recorder.writing import written_whole

OWN_HISTORY = "the program records the allocator's history itself, so efprof leaves it alone from then on"

MAX_ENTRIES = 1_000_000
"""Several kilobytes each once dumped: enough for some hundred steps, and bounded. The oldest give way."""

PICKLE_PROTOCOL = 4
"""The newest one that PyTorch's memory_viz page reads (pytorch#183842)."""

WINDOW = "memory-out-of-memory"

MAX_SHARE = 0.1
"""Of the time, for dumping: a program that catches the error and tries again fails many times in a row."""


class CudaMemory:
    """At most one window is open, and none beside a profiler's; each is written as soon as it closes."""

    def __init__(self, session: Session, history: "CudaHistory") -> None:
        self._session = session
        self._history = history
        self._wanted = [(start, end, "schedule") for start, end in session.options.memory_steps]
        self._peaks = MemoryPeaks() if "memory-peak" in session.options.triggers else None
        self._is_ready = self._is_over = False
        self._end: int | None = None
        """Of the open window: the step before which it closes."""
        self._is_told = True
        self._why = ""
        self._count = 0

    def subscribe(self) -> None:
        """Listen to the steps, and see the program's own use of the history."""
        session = self._session
        session.subscribe(session.loop.step_began, "cuda_memory", self.begin)
        session.subscribe(session.loop.step_ended, "cuda_memory", self.finish)
        session.on_end("cuda_memory", self.end)
        session.shell.when_stopped("cuda_memory", self._abandon)
        session.undo_at_end([_watch_program(session, self)])
        for start, end, _ in self._wanted:
            session.loop.sampling.want(start, end)

    def cuda_began(self) -> None:
        """CUDA is initialised; nothing is allocated yet. A window that is due now starts cold."""
        if self._is_over:
            return
        why_none = why_backend_has_none() or (OWN_HISTORY if self._history.is_on else None)
        if why_none is not None:
            self._give_up(why_none)
            return
        self._is_ready = True
        number = self._session.step_number
        if self._wanted and self._wanted[0][0] == 0 and number < self._wanted[0][1]:
            _, end, _ = self._wanted.pop(0)
            self._open(end, "cold start")

    def begin(self, step: OpenStep) -> None:
        """Open the window that is due, and mark the steps that it slows down."""
        is_due = self._is_ready and bool(self._wanted) and self._wanted[0][0] <= step.number and self._is_affordable()
        if is_due and self._end is None and self._may_be_on(step.number):
            start, end, why = self._wanted.pop(0)
            self._open(step.number + end - start, why)
        if self._end is not None:
            self._mark(step)

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        """Close the window after its last step, or before one that a profiler is meant for."""
        if self._is_ready and self._peaks is not None and record.memory:
            rise = self._peaks.rise(step.number, max(boundary.allocated_bytes for boundary in record.memory))
            if rise is not None:
                self._ask_for_peak(step.number, rise)
        if self._end is not None and (step.number + 1 >= self._end or not self._may_be_on(step.number + 1)):
            self._close(step.number)

    def yield_to_program(self) -> None:
        """The program turns the history on or off itself, by which it would clear ours."""
        if self._end is not None or (self._is_ready and self._wanted):
            self._close(self._session.step_number)
            self._give_up(OWN_HISTORY)

    def end(self) -> None:
        """The program ends, perhaps inside a window: keep what it has. CUDA may still start after us."""
        self._is_over = True
        self._close(self._session.step_number)
        self._stop_watching()

    @property
    def _name(self) -> str:
        return f"memory-{self._count}"

    def _may_be_on(self, number: int) -> bool:
        """Two costly recorders at once would each be measured in the other."""
        is_traced = any(start <= number < end for start, end in self._session.options.trace_steps)
        return not is_traced and not torch._C._autograd._profiler_enabled()

    def _is_affordable(self) -> bool:
        """Steps that the user named are, whatever the budget says."""
        is_asked_for = self._session.options.memory_steps != DEFAULT_MEMORY_STEPS
        return is_asked_for or self._session.budget.affords(self._session.window_cost_ns)

    def _ask_for_peak(self, number: int, rise: float) -> None:
        self._peaks = None  # once in a run: a second snapshot of one growth tells nothing new
        why = f"step {number} had {rise:.0%} more memory allocated than any before it"
        self._session.loop.sampling.want(number + 1, number + 1 + TRIGGERED_STEPS)
        self._wanted.insert(0, (number + 1, number + 1 + TRIGGERED_STEPS, why))

    def _open(self, end: int, why: str) -> None:
        self._session.loop.disturb()
        self._history.turn_on()
        self._count += 1
        self._session.loop.sampling.want(self._session.step_number, end)
        self._end, self._why, self._is_told = end, why, False
        step = self._session.loop.step
        if step is not None:
            self._mark(step)

    def _mark(self, step: OpenStep) -> None:
        """The first step also says that a window is open: a process that never trains has none to tell of."""
        step.window = self._name
        if not self._is_told:
            self._is_told = True
            self._session.note(WindowOpened(at_ns=time.time_ns(), step=step.number, window=self._name, why=self._why))

    def _close(self, last: int) -> None:
        """Write what was recorded; that comes first, since turning off clears it."""
        if self._end is None:
            return
        if not self._is_told:
            self._abandon()
            return
        self._session.loop.disturb()
        start = time.perf_counter()
        path = self._session.rank_folder / f"{self._name}.pickle"
        self._history.write(path)
        self._abandon()
        seconds = time.perf_counter() - start
        self._session.budget.spend("windows", round(seconds * 1e9))
        self._session.note(
            WindowClosed(at_ns=time.time_ns(), step=last, window=self._name, seconds=seconds, files=[path.name])
        )

    def _abandon(self) -> None:
        """Turn off, whatever becomes of the records."""
        if self._end is not None:
            self._end = None
            self._history.turn_off()

    def _give_up(self, reason: str) -> None:
        self._stop_watching()
        self._session.note(
            CollectorStopped(
                at_ns=time.time_ns(), step=self._session.step_number, collector="cuda_memory", reason=reason
            )
        )

    def _stop_watching(self) -> None:
        self._is_ready, self._peaks = False, None
        self._wanted.clear()


def start(session: Session) -> None:
    """Wait for CUDA to be initialised by the program itself."""
    if not is_possible():
        return
    options = session.options
    if options.memory_steps or "memory-peak" in options.triggers:
        memory = CudaMemory(session, CudaHistory())
        memory.subscribe()
        _when_cuda_begins(session, "cuda_memory", memory.cuda_began)
    observer = OutOfMemoryObserver(session)
    observe = session.shell.guarded("out_of_memory", observer.observe)

    def attach() -> None:
        if not observer.is_over and why_backend_has_none() is None:
            torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]

    _when_cuda_begins(session, "out_of_memory", attach)
    session.on_end("out_of_memory", observer.end)


def _when_cuda_begins(session: Session, collector: str, function: Callable[[], None]) -> None:
    guarded: Any = session.shell.guarded(collector, function)
    torch.cuda._lazy_call(guarded)  # type: ignore[no-untyped-call]


def _watch_program(session: Session, memory: CudaMemory) -> Undo:
    original = torch.cuda.memory._record_memory_history
    begins = session.shell.guarded("cuda_memory", memory.yield_to_program)

    @functools.wraps(original)
    def record(*args: Any, **kwargs: Any) -> None:
        begins()
        original(*args, **kwargs)

    return replace(torch.cuda.memory, "_record_memory_history", record)


def is_possible() -> bool:
    """Whether this build of torch has such a history at all."""
    return hasattr(torch._C, "_cuda_record_memory_history")


def why_backend_has_none() -> str | None:
    """Why this process's allocator keeps no history; ask only once CUDA is initialised."""
    backend: str = torch.cuda.memory.get_allocator_backend()
    return None if backend == "native" else f"the allocator backend {backend} keeps no history of its memory"


class CudaHistory:
    """There is one for all devices of the process, and whoever turns it off clears it."""

    def __init__(self) -> None:
        # Taken before it is replaced, to see the program's calls and not our own.
        self._record: Any = torch.cuda.memory._record_memory_history

    @property
    def is_on(self) -> bool:
        """Whether someone, we or the program, has turned it on."""
        return torch._C._cuda_isHistoryEnabled()

    def turn_on(self) -> None:
        """With Python stacks alone: unwinding C++ makes a snapshot take minutes (torchtitan#3628)."""
        more = {"skip_actions": ["free_requested"]} if _can_skip_actions() else {}
        self._record(enabled="all", context="all", stacks="python", max_entries=MAX_ENTRIES, **more)

    def turn_off(self) -> None:
        """What was not written before is lost."""
        self._record(enabled=None)

    def write(self, path: Path) -> None:
        """Write all segments, and the history as far as it reaches."""
        write_snapshot(path)


def write_snapshot(path: Path) -> None:
    """Write the allocator's state under this name in one instant; raises OSError and leaves nothing half-written."""
    with no_garbage_collection(), written_whole(path) as part, part.open("wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file, protocol=PICKLE_PROTOCOL)


def _can_skip_actions() -> bool:
    """Torch 2.11 and newer; a replay needs the end of a free and not the request for it, a third of all entries."""
    return "skip_actions" in inspect.signature(torch.cuda.memory._record_memory_history).parameters


class OutOfMemoryObserver:
    """Called by the allocator, in whichever thread asked for memory. torch cannot detach it: it goes quiet instead."""

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self._next_s = 0.0

    def observe(self, device: int, requested_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        """Write the snapshot, over that of an earlier failure which the program survived."""
        session = self._session
        start = time.monotonic()
        if session is None or start < self._next_s:
            return
        number = session.step_number
        why = (
            f"device {device} could not give {requested_bytes} bytes: "
            f"{free_bytes} of the {limit_bytes} bytes that it may use were free"
        )
        session.note(WindowOpened(at_ns=time.time_ns(), step=number, window=WINDOW, why=why))
        path = session.rank_folder / f"{WINDOW}.pickle"
        write_snapshot(path)
        seconds = time.monotonic() - start
        self._next_s = start + seconds / MAX_SHARE
        session.note(WindowClosed(at_ns=time.time_ns(), step=number, window=WINDOW, seconds=seconds, files=[path.name]))

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self._session is None

    def end(self) -> None:
        """Do nothing from now on, and hold nothing."""
        self._session = None
