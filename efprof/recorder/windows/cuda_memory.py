"""Records the CUDA allocator's history in windows, the first from before the model is built; dumps it out of memory."""

import pickle
import time
from pathlib import Path
from typing import Any

import torch

from efprof.artifacts.events import CollectorStopped, DeviceOutOfMemory, OutOfMemory, WindowClosed, WindowOpened
from efprof.artifacts.files import no_garbage_collection
from efprof.artifacts.steps import StepRecord
from efprof.recorder.hooks.torch_versions import SHORTER_HISTORY, version_of
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.endings import ExitWatcher
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS, Options
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.writing import RankFolder, written_whole
from efprof.recorder.windows.triggers import TRIGGERED_STEPS, MemoryPeaks, WindowRequests

OWN_HISTORY = "the program records the allocator's history itself, so efprof leaves it alone from then on"

MAX_ENTRIES = 200_000
"""Nothing interrupts a dump, so what it may take is decided here: of each entry about 10 us, with Python's lock held,
and 1.5 kB of the host's memory. That is 2 s and 0.3 GiB, and enough for some twenty steps. The oldest give way."""

RING_ENTRIES = 10_000
"""Of the history that is kept at all times, where one is wished for: a step or two. A dump of it takes 0.1 s."""

PICKLE_PROTOCOL = 4
"""The newest one that PyTorch's memory_viz page reads (pytorch#183842)."""

WINDOW = "memory-out-of-memory"


class CudaMemory:
    """At most one window is open, and none beside a profiler's; each is written as soon as it closes."""

    def __init__(self, options: Options, *, loop: Loop, requests: WindowRequests, files: "MemoryFiles") -> None:
        self._options, self._loop, self._requests, self._files = options, loop, requests, files
        self._history = files.history
        self._wanted = [(start, end, "schedule") for start, end in options.memory_steps]
        self._peaks = MemoryPeaks() if "memory-peak" in options.triggers else None
        self._is_ready = self._is_over = False
        self._has_ring = options.memory_ring
        self._end: int | None = None
        self._untold = ""
        """Why the window that is open was opened, until a step says so: a process that never trains tells nothing."""
        self._count = 0
        for start, end, _ in self._wanted:
            loop.sampling.want(start, end)

    def cuda_began(self) -> None:
        """CUDA is initialised; nothing is allocated yet. A window that is due now starts cold."""
        if self._is_over:
            return
        why_none = why_backend_has_none() or (OWN_HISTORY if self._history.is_on else None)
        if why_none is not None:
            self._give_up(why_none)
            return
        self._is_ready = True
        number = self._loop.number
        if self._wanted and self._wanted[0][0] == 0 and number < self._wanted[0][1]:
            _, end, _ = self._wanted.pop(0)
            self._open(end, "cold start")
        elif self._has_ring:
            self._history.turn_on(RING_ENTRIES)

    def step_began(self, step: OpenStep) -> None:
        is_asked_for = self._options.memory_steps != DEFAULT_MEMORY_STEPS  # then no budget stands against it
        is_due = self._is_ready and bool(self._wanted) and self._wanted[0][0] <= step.number
        is_due = is_due and (is_asked_for or self._requests.are_affordable())
        if is_due and self._end is None and self._may_be_on(step.number):
            start, end, why = self._wanted.pop(0)
            self._open(step.number + end - start, why)
        if self._end is not None:
            self._mark(step)

    def step_ended(self, _: object, record: StepRecord) -> None:
        """Close the window after its last step, or before one that a profiler is meant for."""
        if self._is_ready and self._peaks is not None and record.memory:
            rise = self._peaks.rise(record.step, max(boundary.allocated_bytes for boundary in record.memory))
            if rise is not None:
                self._peaks = None  # once in a run: a second snapshot of one growth tells nothing new
                start, end = record.step + 1, record.step + 1 + TRIGGERED_STEPS
                why = f"step {record.step} had {rise:.0%} more memory allocated than any before it"
                self._loop.sampling.want(start, end)
                self._wanted.insert(0, (start, end, why))
        if self._end is not None and (record.step + 1 >= self._end or not self._may_be_on(record.step + 1)):
            self._close(record.step)

    def yield_to_program(self, *_: object) -> None:
        """The program turns the history on or off itself, by which it would clear ours."""
        is_to_come = self._wanted or self._has_ring or self._peaks is not None
        if self._end is not None or (self._is_ready and is_to_come):
            self._close(self._loop.number)
            self._give_up(OWN_HISTORY)

    def at_end(self) -> None:
        """The program ends, perhaps inside a window: keep what it has. CUDA may still start after us."""
        self._is_over = True
        self._close(self._loop.number)
        self.stop_watching()

    @property
    def _name(self) -> str:
        return f"memory-{self._count}"

    def _may_be_on(self, number: int) -> bool:
        """Two costly recorders at once would each be measured in the other."""
        is_traced = any(start <= number < end for start, end in self._options.trace_steps)
        return not is_traced and not torch._C._autograd._profiler_enabled()

    def _open(self, end: int, why: str) -> None:
        self._loop.mark_interrupted()
        if self._has_ring:
            self._history.turn_off()  # a ring that grows while it is full has its entries out of order
        self._history.turn_on(MAX_ENTRIES)
        self._count += 1
        self._loop.sampling.want(self._loop.number, end)
        self._end, self._untold = end, why
        step = self._loop.step
        if step is not None:
            self._mark(step)

    def _mark(self, step: OpenStep) -> None:
        step.window, why, self._untold = self._name, self._untold, ""
        if why:
            self._files.note_opened(step.number, self._name, why)

    def _close(self, last: int) -> None:
        """Write what was recorded; that comes first, since turning off clears it."""
        if self._end is None:
            return
        if not self._untold:
            self._loop.mark_interrupted()
            seconds = self._files.write(self._name, last)
            self._requests.spend(round(seconds * 1e9))
        self._end = None
        self._history.turn_off()
        if self._has_ring:  # what is kept at all times begins anew
            self._history.turn_on(RING_ENTRIES)

    def _give_up(self, reason: str) -> None:
        self.stop_watching()
        self._files.note_stopped(reason)

    def stop_watching(self) -> None:
        is_on = self._end is not None or (self._is_ready and self._has_ring)
        self._is_ready, self._has_ring, self._peaks, self._end = False, False, None, None
        self._wanted.clear()
        if is_on:
            self._history.turn_off()


def start(session: Session) -> None:
    if not hasattr(torch._C, "_cuda_record_memory_history"):
        return
    options, loop = session.options, session.loop
    files = MemoryFiles(CudaHistory(), loop=loop, folder=session.rank_folder, note=session.note)
    if options.memory_steps or options.memory_ring or "memory-peak" in options.triggers:
        memory = CudaMemory(options, loop=loop, requests=session.window_requests, files=files)
        subscribe(session, memory)
        session.when_cuda_begins("cuda_memory", memory.cuda_began)
    failures = [MemoryFailures(files, loop, session.endings, session.note)]
    # Empty once the recording is over: torch cannot detach an observer, which then does nothing, and holds nothing.

    def add(*failure: int) -> None:
        for one in failures:
            one.add(*failure)

    observe = session.shell.guarded("out_of_memory", add)

    def attach() -> None:
        if failures and why_backend_has_none() is None:
            torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]

    session.when_cuda_begins("out_of_memory", attach)
    session.on_end("out_of_memory", lambda: failures.pop().tell())


def subscribe(session: Session, memory: CudaMemory) -> None:
    session.attach("cuda_memory", memory)
    session.shell.when_stopped("cuda_memory", memory.stop_watching)
    session.before(torch.cuda.memory, "_record_memory_history", "cuda_memory", memory.yield_to_program)


def why_backend_has_none() -> str | None:
    backend: str = torch.cuda.memory.get_allocator_backend()
    return None if backend == "native" else f"the allocator backend {backend} keeps no history of its memory"


class CudaHistory:
    """There is one for all devices of the process, and whoever turns it off clears it."""

    def __init__(self) -> None:
        # Taken before it is replaced, to see the program's calls and not our own.
        self._record: Any = torch.cuda.memory._record_memory_history
        self._is_ours = False

    @property
    def is_on(self) -> bool:
        return torch._C._cuda_isHistoryEnabled()

    def turn_on(self, max_entries: int) -> None:
        """With Python stacks alone: unwinding C++ makes a snapshot take minutes (torchtitan#3628)."""
        # A replay needs the end of a free and not the request for it, a third of all entries.
        more = {"skip_actions": ["free_requested"]} if version_of(torch) >= SHORTER_HISTORY else {}
        self._is_ours = True
        self._record(enabled="all", context="all", stacks="python", max_entries=max_entries, **more)

    def turn_off(self) -> None:
        self._is_ours = False
        self._record(enabled=None)

    def write(self, path: Path) -> bool:
        """Write all segments, and the history unless it is the program's own; whether it was."""
        is_whole = self._is_ours or not (self.is_on and version_of(torch) >= SHORTER_HISTORY)
        if is_whole:
            write_snapshot(path)
        else:
            segments = torch.cuda.memory_snapshot(include_traces=False)  # type: ignore[no-untyped-call]
            _write(path, {"segments": segments, "device_traces": []})
        return is_whole


class MemoryFiles:
    """Writes what the history has at the end of a window, and tells of windows."""

    def __init__(self, history: CudaHistory, *, loop: Loop, folder: RankFolder, note: Note) -> None:
        self.history, self._loop, self._folder, self._note = history, loop, folder, note

    def note_opened(self, step: int, window: str, why: str) -> None:
        self._note(WindowOpened(step=step, window=window, why=why))

    def write(self, window: str, step: int) -> float:
        """Close a window with this step; the seconds that it took."""
        start, path = time.perf_counter(), self._folder.path / f"{window}.pickle"
        is_whole = self.history.write(path)
        seconds = time.perf_counter() - start
        self._note(WindowClosed(step=step, window=window, seconds=seconds, files=[path.name]))
        if not is_whole:
            self.note_stopped(f"{path.name} is without the allocator's history: it is the program's own, of any length")
        return seconds

    def note_stopped(self, why: str) -> None:
        self._note(CollectorStopped(step=self._loop.number, collector="cuda_memory", reason=why))


def write_snapshot(path: Path) -> None:
    """Write the allocator's state under this name in one instant; raises OSError and leaves nothing half-written."""
    _write(path, torch.cuda.memory._snapshot())


def _write(path: Path, snapshot: object) -> None:
    with no_garbage_collection(), written_whole(path) as part, part.open("wb") as file:
        pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)


class MemoryFailures:
    """Memory that a device could not give, told by the allocator in whichever thread asked for it.

    Most of these failures a program survives, as when cuDNN tries work spaces: one snapshot is taken of all that.
    """

    def __init__(self, files: MemoryFiles, loop: Loop, endings: ExitWatcher, note: Note) -> None:
        self._files, self._loop, self._endings, self._note = files, loop, endings, note
        self._last = DeviceOutOfMemory(step=-1)

    def add(self, device: int, requested_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        self._last = DeviceOutOfMemory(
            step=self._loop.number,
            device=device,
            requested_bytes=requested_bytes,
            free_bytes=free_bytes,
            num_failed=self._last.num_failed + 1,
        )
        if self._last.num_failed == 1:
            self._note(self._last)
            self._write(
                f"device {device} could not give {requested_bytes} bytes: "
                f"{free_bytes} of the {limit_bytes} bytes that it may use were free",
            )

    def tell(self) -> None:
        """Tell of all of them; of the one that ended the program by a snapshot, if there is none of it yet.

        What its functions hold is still there: the error has them.
        """
        if not torch.cuda.is_initialized() or why_backend_has_none():  # type: ignore[no-untyped-call]
            return
        last = self._last
        last.num_rejected = sum(
            torch._C._cuda_memoryStats(device).get("num_oom_rejections", 0)  # since torch 2.12
            for device in range(torch.cuda.device_count())
        )
        if not last.num_failed:
            last.at_ns, last.step = time.time_ns(), self._loop.number
        if last.num_failed > 1 or last.num_rejected:
            self._note(last)
        written_in = last.step if last.num_failed == 1 else None
        errors = [event for event in self._endings.events if isinstance(event, OutOfMemory) and event.is_for_tensor]
        if any("CPUAllocator" not in event.message and event.step != written_in for event in errors):
            self._write("the program ended for want of memory")

    def _write(self, why: str) -> None:
        self._files.note_opened(self._loop.number, WINDOW, why)
        self._files.write(WINDOW, self._loop.number)
