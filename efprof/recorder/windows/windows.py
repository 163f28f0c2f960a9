"""Opens windows of torch.profiler for a few steps at a time; allocations with their lines come with it."""

import functools
import gc
import os
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.torch_version import TorchVersion

from efprof.artifacts.events import CollectorStopped, WindowClosed, WindowOpened
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import LightStep
from efprof.recorder.hooks.patching import call_after, call_before
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.options import DEFAULT_TRACE_STEPS, Options, StepRange
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.windows.profiled_window import Planned, ProfiledWindow, is_profiling, is_running
from efprof.recorder.windows.triggers import TRIGGERED_STEPS, Triggers, WindowRequests

MAX_FETCH_NS = 20_000_000
"""CPU time. A step that fetched its batch for longer did so in Python, in this process: the profiler would record every
call of it (half a million for one batch of text, 25 s to write, measured). Such a window starts after the fetch."""

POSTPONED_STEPS = 100
"""A scheduled window that the budget does not allow yet is tried again so many steps later."""

LEAN_DISTANCE = 2
"""Steps between a scheduled window and the lean one after it: what the first one left behind is over by then, and an
even distance keeps loops in step that do something every second time."""

SEVERAL_THREADS = "several threads make the steps, and a window sees one alone"
ANOTHER_PROFILES = "another thread began to profile itself in a window, so that window is the last, and left out"
GRAPHS_CRASH = "the program captures CUDA graphs, with which the profiler of CUDA before 12.6 crashes"


class Windows:
    """At most one window is open; each is written as soon as it closes, so that a crash costs one at most."""

    def __init__(
        self, options: Options, *, loop: Loop, requests: WindowRequests, make: Callable[..., ProfiledWindow], note: Note
    ) -> None:
        """`make` a window, given its plan, its number and its first step."""
        self._options, self._loop, self._requests, self._make, self._note = options, loop, requests, make, note
        self._planned = {start: Planned(end) for start, end in options.trace_steps if end > start}
        self._triggers = Triggers(options.triggers, requests.asked)
        self._window: ProfiledWindow | None = None
        self._programs = weakref.WeakValueDictionary[int, Any]()
        """The program's own profilers, by their `id`. Torch says of the calling thread alone whether one is on, and
        crashes where one stops after another that was on beside it in another thread."""
        self._may_open = True
        self._count = 0
        self._fetch_ns = 0
        """CPU time of the first fetch in the last step."""
        self._is_asked_for = options.trace_steps != DEFAULT_TRACE_STEPS
        """Whether the user named the steps: then no budget stands against them."""
        for start, planned in self._planned.items():
            loop.sampling.want(start, planned.end)

    def begin(self, step: OpenStep) -> None:
        if not self._may_open:
            self._triggers.requests.clear()  # steps are recorded in full as long as one waits
        if self._window is None and self._may_open:
            if step.window is None and self._requests.are_waiting():
                self._plan_triggered(step.number)
            self._postpone(step.number)
            if step.number in self._planned and self._fetch_ns <= MAX_FETCH_NS:
                self._loop.mark_interrupted()
                self._open(step, self._planned[step.number])
        self._fetch_ns = 0
        if self._window is not None:
            step.window = self._window.name

    def begin_after_fetch(self, step: OpenStep) -> None:
        """Open a window of this one step, less the fetch that was too long to be in it."""
        if step.batches.num_fetches == 1:
            self._fetch_ns = time.process_time_ns() - step.start_cpu_ns
        if self._window is None and step.number in self._planned and step.window is None:
            planned = self._planned[step.number]
            self._open(step, planned._replace(end=step.number + 1, why=f"{planned.why}, without the data stage"))
            step.window = self._window.name if self._window is not None else None

    def finish(self, _: object, record: StepRecord) -> None:
        if self._window is not None:
            self._requests.spend(round(record.total_us * 1000))
        self._triggers.note(record)
        if self._window is not None and record.step + 1 >= self._window.end:
            self._close(self._window, record.step)

    def note_light(self, steps: list[LightStep]) -> None:
        for step in steps:
            if step.is_usual:
                self._triggers.note_length(step.number, step.length_ns / 1000)

    def drop(self, step: OpenStep) -> None:
        """What was fetched fed an evaluation, which may be long: keep the steps so far, or wait for the next one."""
        window = self._window
        if window is None:
            return
        if step.number > window.first or window.is_shared or not window.is_opener:
            self._close(window, max(step.number - 1, window.first))
            return
        self._planned[step.number + 1] = Planned(window.end + 1, window.why, window.is_lean)
        self._discard(window, step.number)

    def yield_to_program(self, *_: object) -> None:
        """The program starts a profiler of its own, which would raise while ours is on."""
        window = self._window
        if window is None or window.is_starting:
            return
        if self._loop.thread.is_training_thread or window.is_opener:
            self._close(window, self._loop.number)
            self._note_stopped(self._loop.number, "the program began to profile itself, so a window ended early")

    def note_profiler(self, profiler: object, *_: object) -> None:
        is_ours = self._window is not None and self._window.is_starting and self._window.is_opener
        if is_ours:
            return
        self._programs[id(profiler)] = profiler
        if self._window is not None and getattr(profiler, "enabled", True):
            self._window.is_shared = True

    def end(self) -> None:
        if self._window is not None:
            self._close(self._window, self._loop.number)
        if self._window is not None:
            self._window.turn_off()  # torch would crash as the process ends

    def _postpone(self, number: int) -> None:
        planned = self._planned.get(number)
        if planned is None or planned.why != "schedule" or self._is_asked_for:
            return
        if not self._requests.are_affordable(is_lean=planned.is_lean):
            del self._planned[number]
            self._plan(number + POSTPONED_STEPS, planned.end + POSTPONED_STEPS, is_lean=planned.is_lean)

    def _plan(self, start: int, end: int, *, is_lean: bool) -> None:
        """There, or so much later that it is clear of the allocator's history."""
        while any(start < memory_end and memory_start < end for memory_start, memory_end in self._memory_steps()):
            start, end = start + POSTPONED_STEPS, end + POSTPONED_STEPS
        if start not in self._planned or self._planned[start].is_lean:  # a full one is not lost to a lean one
            self._planned[start] = Planned(end, is_lean=is_lean)
        self._loop.sampling.want(start, end)

    def _plan_lean(self, window: ProfiledWindow, last: int) -> None:
        """As many steps as the scheduled window had, soon after it, to read times from that it did not bend."""
        if window.why.startswith("schedule") and not (window.is_lean or self._is_asked_for):
            start = last + 1 + LEAN_DISTANCE
            self._plan(start, start + last + 1 - window.first, is_lean=True)

    def _plan_triggered(self, number: int) -> None:
        """At this step, where it may be; otherwise the request waits."""
        scheduled = [(start, planned.end) for start, planned in self._planned.items()]
        why = None if self._is_program_profiling() else self._triggers.take(number, [*scheduled, *self._memory_steps()])
        if why is not None:
            self._planned[number] = Planned(number + TRIGGERED_STEPS, why)

    def _memory_steps(self) -> tuple[StepRange, ...]:
        return self._options.memory_steps if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]

    def _open(self, step: OpenStep, planned: Planned) -> None:
        del self._planned[step.number]
        if self._would_crash():
            self._give_up(step.number, GRAPHS_CRASH)
            return
        if self._is_program_profiling():
            reason = "the program was profiling itself when a window was due, so that window was left out"
            self._note_stopped(step.number, reason)
            return
        if not planned.is_lean:  # a lean one has its number: one that still waits would have the wrong one
            self._count += 1
            self._planned = {start: one for start, one in self._planned.items() if not one.is_lean}
        self._loop.sampling.want(step.number, planned.end)
        window = self._make(planned, number=self._count, first=step.number)
        self._note(WindowOpened(step=step.number, window=window.name, why=planned.why))
        with ExitStack() as interrupted:  # by Ctrl-C most of all: one left on takes more memory with every step
            interrupted.callback(self._discard, window, step.number)
            self._window = window
            window.start()
            interrupted.pop_all()

    def _would_crash(self) -> bool:
        """CUPTI does in its second window where there are graphs; with those of torch.compile torch has it stay on."""
        if TorchVersion(torch.version.cuda or "12.6") >= "12.6" or os.environ.get("TEARDOWN_CUPTI") == "0":
            return False
        graph = torch.cuda.CUDAGraph  # some may be older than the recording
        return self._loop.thread.has_captured or any(issubclass(type(one), graph) for one in gc.get_objects())

    def _is_program_profiling(self) -> bool:
        return is_profiling() or self._is_any_running()

    def _is_any_running(self) -> bool:
        return any(is_running(reference()) for reference in self._programs.valuerefs())

    def _note_stopped(self, number: int, reason: str) -> None:
        self._note(CollectorStopped(step=number, collector="windows", reason=reason))

    def _discard(self, window: ProfiledWindow, number: int) -> None:
        self._window = None
        window.discard()
        self._note_closed(window, number, window.start_seconds, [])

    def _give_up(self, number: int, reason: str) -> None:
        self._may_open = False
        self._planned.clear()
        self._note_stopped(number, reason)

    def _close(self, window: ProfiledWindow, last: int) -> None:
        """Where its steps went on in another thread, or another thread profiles too, it is lost, and no other opens.

        It stays on until the thread that opened it is back or is no more, and nothing profiles beside it.
        """
        if window.is_shared or not window.is_opener:
            if self._may_open:
                window.take_operators_out()
                self._give_up(last, ANOTHER_PROFILES if window.is_shared else SEVERAL_THREADS)
            if window.may_be_ended and not self._is_any_running():
                self._discard(window, last)
            else:
                window.end = last + 2
            return
        self._window = None
        start = time.perf_counter()
        files = window.write()
        seconds = window.start_seconds + time.perf_counter() - start
        self._requests.cost_ns[window.is_lean] = cost_ns = round(seconds * 1e9)
        self._requests.spend(cost_ns)
        self._note_closed(window, last, seconds, files)
        self._plan_lean(window, last)

    def _note_closed(self, window: ProfiledWindow, last: int, seconds: float, files: list[str]) -> None:
        self._note(WindowClosed(step=last, window=window.name, seconds=seconds, files=files))


def start(session: Session) -> None:
    if session.options.trace_steps or session.options.triggers:
        loop, requests = session.loop, session.window_requests
        folder, sites = session.rank_folder, session.sites
        make = functools.partial(ProfiledWindow, loop=loop, memory=session.memory, folder=folder, sites=sites)
        windows = Windows(session.options, loop=loop, requests=requests, make=make, note=session.note)
        loop.sampling.is_asked = requests.are_waiting
        session.subscribe(loop.step_began, "windows", windows.begin)
        session.subscribe(loop.fetched, "windows", windows.begin_after_fetch)
        session.subscribe(loop.step_dropped, "windows", windows.drop)
        session.subscribe(loop.step_ended, "windows", windows.finish)
        if session.options.triggers:
            session.subscribe(loop.light.steps.listeners, "windows", windows.note_light)
        session.on_end("windows", windows.end)
        begins, noted = (
            session.shell.guarded("windows", one) for one in (windows.yield_to_program, windows.note_profiler)
        )
        profile = torch.autograd.profiler.profile
        session.undo_at_end([call_before(profile, "__init__", begins), call_after(profile, "__init__", noted)])
