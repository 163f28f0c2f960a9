"""Opens windows of torch.profiler for a few steps at a time; allocations with their lines come with it."""

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.torch_version import TorchVersion

from efprof.artifacts.events import CollectorStopped, WindowClosed, WindowLeftOut, WindowOpened
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import LightStep
from efprof.recorder.loop.loop import QUIET_STEPS, Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.step_numbers import living
from efprof.recorder.session.options import DEFAULT_TRACE_STEPS, Options, StepRange
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.windows.cpu_limit import CpuLimit
from efprof.recorder.windows.profiled_window import (
    Planned,
    ProfiledWindow,
    end_without_destructors,
    is_profiling,
    is_running,
)
from efprof.recorder.windows.step_events import IN_STEP_NS, MAX_EVENTS, StepEvents
from efprof.recorder.windows.triggers import ASKED_FOR, TRIGGERED_STEPS, WindowRequests

POSTPONED_STEPS = 100
"""A window that the budget does not allow yet is tried again so many steps later, or after as many as there were."""

LEAN_DISTANCE = 2
"""Steps between a scheduled window and the lean one after it: what the first one left behind is over by then, and an
even distance keeps loops in step that do something every second time."""

MAX_STRETCH = 2
MAX_EXCESS_NS = 30_000_000
MAX_COUNT_NS = 300_000_000
"""Steps in a window that take so many times the CPU time that was reckoned, and so much more, hold something else; so
does one that is counted, by what steps took before it."""

COMMON_STEPS = 16
"""In a distributed run a window that nobody scheduled begins at a multiple of these. Where one rank sees a slow step or
a NaN the others mostly see it too: so they write together, and none waits at a collective for another's file."""

SEVERAL_THREADS = "several threads make the steps, and a window sees one alone"
PROFILES = "the program began to profile itself, so a window ended early"
EXCHANGES = "the program exchanged tensors that a window referred to, so that ended early"
ANOTHER_PROFILES = "another thread began to profile itself in a window, so that window is the last, and left out"
GRAPHS_CRASH = "the program captures CUDA graphs, with which the profiler of CUDA before 12.6 crashes"


class Windows:
    """At most one window is open; each is written as soon as it closes, so that a crash costs one at most.

    What the user asks for opens whatever its size. Any other window is reckoned from the step before it, whose calls
    are counted: it gets shorter, or lean, or waits, until it is no larger than MAX_EVENTS and the budget allow.
    """

    def __init__(
        self, options: Options, loop: Loop, requests: WindowRequests, make: Callable[..., ProfiledWindow], note: Note
    ) -> None:
        """`make` a window, given its plan, its number and its first step."""
        self._options, self._loop, self._requests, self._make, self._note = options, loop, requests, make, note
        self._planned = {start: Planned(end) for start, end in options.trace_steps if end > start}
        self._window: ProfiledWindow | None = None
        self._opened_ns = self._started_ns = 0
        """When it was asked for and when it was on, by the thread's CPU time."""
        self._programs = weakref.WeakValueDictionary[int, Any]()
        """The program's own profilers, by their `id`. Torch says of the calling thread alone whether one is on, and
        crashes where one stops after another that was on beside it in another thread."""
        self._may_open = True
        self._is_over = False
        """Whether the program has ended: no other window would open in the place of one that is dropped."""
        self._count = self._num_counts = 0
        self._events = StepEvents()
        self._limit = CpuLimit(self._overran)
        self._num_dropped = 0
        self._has_left_out = False
        self._is_asked_for = options.trace_steps != DEFAULT_TRACE_STEPS
        """Whether the user named the steps: then neither size nor budget stands against them."""
        for start, planned in self._planned.items():
            loop.sampling.want(start - 1, planned.end)

    def step_began(self, step: OpenStep) -> None:
        self._events.stop()  # where a loader ended in the step that was counted, that was none
        if not self._may_open:
            self._requests.asked.clear()  # steps are recorded in full as long as one waits
        if self._window is None and self._may_open:
            if step.window is None and self._requests.are_waiting():
                self._plan_triggered(step.number)
            planned = self._due(step.number)
            if planned is not None and not planned.skips_fetch:
                self._loop.mark_interrupted()
                self._open(step, planned)
            elif planned is None and self._is_worth_counting(step.number):
                self._loop.window_begins()
                if self._events.begin():
                    self._limit.begin(MAX_STRETCH * self._loop.sampling.length_ns + MAX_COUNT_NS)
                    self._num_counts += 1
                    step.window = f"calls-{self._num_counts}"
        if self._window is not None:
            step.window = self._window.name

    def fetched(self, step: OpenStep) -> None:
        """Where the fetch was too large to be in it, the window opens after it."""
        self._events.fetch_ended()
        planned = self._planned.get(step.number)
        if self._window is None and step.window is None and planned is not None and planned.skips_fetch:
            self._open(step, planned)
            step.window = self._window.name if self._window is not None else None

    def forward_called(self) -> None:
        """Drop a window in which far more runs than was reckoned, as an evaluation does."""
        if self._window is not None and self._holds_more(self._window):
            self._try_again(self._window, self._loop.number)

    def _overran(self) -> None:
        """In the middle of a step that does what those before it did not: from here on none of it is looked at."""
        if self._events.is_counting:
            self._requests.spend(self._events.counting_ns)
            self._events.stop()
        if self._window is not None and self._holds_more(self._window):
            self._window.look_away()

    def compilation_began(self) -> None:
        """Nothing of it goes into a window: it would be a million calls of the compiler's."""
        self._events.stop()
        window = self._window
        if window is not None and window.planned.num_events and window.is_opener and not window.is_starting:
            self._try_again(window, self._loop.number)

    def step_ended(self, _: object, record: StepRecord) -> None:
        if self._events.is_counting:
            self._limit.end()
            self._events.end(record.step)
            self._requests.spend(self._events.counting_ns)
            self._requests.cost_ns = self._cost_of(self._reckoned(Planned(1, is_lean=True), 0))
        self._requests.note(record)
        if self._window is not None and record.step + 1 >= self._window.end:
            self._close(self._window, record.step)

    def note_light(self, steps: list[LightStep]) -> None:
        for step in steps:
            if step.is_usual:
                self._requests.note_length(step.number, step.length_ns / 1000)

    def step_dropped(self, step: OpenStep) -> None:
        """What was fetched fed an evaluation, which may be long: keep the steps so far, or wait for the next one."""
        self._events.stop()
        window = self._window
        if window is None:
            return
        if step.number > window.first or window.is_shared or not window.is_opener:
            self._close(window, max(step.number - 1, window.first))
            return
        self._planned[step.number + 1] = window.planned._replace(end=window.end + 1)
        self._discard(window, step.number)

    def yield_to_program(self, reason: str, *_: object) -> None:
        """The program starts a profiler of its own, or calls what else would raise while ours is on."""
        window = self._window
        if window is None or window.is_starting:
            return
        if self._loop.thread.is_training_thread or window.is_opener:
            self._close(window, self._loop.number)
            self._note_stopped(self._loop.number, reason)

    def note_profiler(self, profiler: object, *_: object) -> None:
        window = self._window
        if window is not None and window.is_starting and window.is_opener:
            return  # it is ours
        self._programs[id(profiler)] = profiler
        if window is not None and getattr(profiler, "enabled", True):
            window.is_shared = True

    def at_end(self) -> None:
        self._is_over = True
        self._limit.end()
        self._events.stop()
        if self._window is not None:
            self._close(self._window, self._loop.number)
        if self._window is not None:
            self._window.turn_off()  # torch would crash as the process ends

    def abandon(self) -> None:
        """This is a forked child: neither a count nor torch's profiler goes on in it."""
        self._events.stop()
        if self._window is not None:
            sys.setprofile(None)
        if self._opened_ns:
            end_without_destructors()

    # When, and how large.

    def _due(self, number: int) -> Planned | None:
        """What opens at this step, no larger than it may be; what may not open yet is put off."""
        planned = self._planned.get(number)
        if planned is None or self._is_asked(planned):
            return planned
        num_steps = self._loop.compiled_at + QUIET_STEPS + 1 - number
        if num_steps > 0:
            self._put_off(number, num_steps)
        elif self._is_program_profiling():
            return planned
        elif not self._events.are_known(number):
            self._put_off(number, 1 if self._requests.are_affordable() else POSTPONED_STEPS)
        else:
            return self._fitted(number, planned)
        return None

    def _is_asked(self, planned: Planned) -> bool:
        return planned.why == ASKED_FOR or (self._is_asked_for and planned.why == "schedule")

    def _is_worth_counting(self, number: int) -> bool:
        planned = self._planned.get(number + 1)
        if planned is None or self._is_asked(planned):
            return False
        if not self._requests.are_affordable() or self._is_program_profiling():
            return False
        if any(start <= number < end for start, end in self._memory_steps()):
            return False
        return not (planned.is_lean and self._events.are_known(number + 1))

    def _fitted(self, number: int, planned: Planned) -> Planned | None:
        """The plan, as much smaller as it has to be."""
        choices = [self._reckoned(choice, number) for choice in self._choices(planned, number)]
        for choice in choices:
            if choice.num_events <= MAX_EVENTS and self._requests.are_affordable(self._cost_of(choice)):
                if choice.is_lean and not planned.is_lean:
                    self._note_left_out(number, choices[1])
                self._planned[number] = choice
                return choice
        self._note_left_out(number, choices[1])
        self._put_off(number, max(POSTPONED_STEPS, number))
        return None

    def _choices(self, planned: Planned, number: int) -> Iterator[Planned]:
        one = planned._replace(end=number + 1)
        yield planned
        yield one
        if planned.is_lean:
            return
        if self._events.has_fetch:
            yield one._replace(skips_fetch=True, why=f"{planned.why}, without the data stage")
        yield planned._replace(is_lean=True, why=f"{planned.why}, without lines")
        yield one._replace(is_lean=True, why=f"{planned.why}, without lines")

    def _reckoned(self, planned: Planned, number: int) -> Planned:
        num_steps = planned.end - number
        num_events = self._events.in_window(num_steps, is_lean=planned.is_lean, skips_fetch=planned.skips_fetch)
        return planned._replace(num_events=max(1, num_events))

    def _cost_of(self, planned: Planned) -> int:
        return self._events.cost_ns(planned.num_events, is_lean=planned.is_lean)

    def _holds_more(self, window: ProfiledWindow) -> bool:
        """Whether its steps hold far more than was reckoned."""
        if not window.planned.num_events or not window.is_opener:
            return False
        return time.thread_time_ns() - self._started_ns > self._most_ns(window)

    def _most_ns(self, window: ProfiledWindow) -> int:
        reckoned = self._own_ns(window, window.end) + window.planned.num_events * IN_STEP_NS
        return MAX_STRETCH * reckoned + MAX_EXCESS_NS

    def _own_ns(self, window: ProfiledWindow, end: int) -> int:
        return self._events.own_ns(end - window.first, skips_fetch=window.planned.skips_fetch)

    def _note_left_out(self, number: int, one_step: Planned) -> None:
        if not (self._has_left_out or one_step.is_lean):
            self._has_left_out = True
            seconds = self._cost_of(one_step) / 1e9
            num_events, has_more = one_step.num_events, self._events.has_more
            self._note(WindowLeftOut(step=number, num_events=num_events, seconds=seconds, has_more=has_more))

    def _put_off(self, number: int, num_steps: int) -> None:
        planned = self._planned.pop(number)
        self._plan(number + num_steps, planned._replace(end=planned.end + num_steps))

    def _try_again(self, window: ProfiledWindow, number: int) -> None:
        """Drop what the open window has, and open it anew once nothing was compiled for two steps."""
        self._discard(window, number)
        self._num_dropped += 1  # other distances each time: a loop may do something every third step
        start = number + QUIET_STEPS + self._num_dropped
        self._plan(start, window.planned._replace(end=start + window.end - window.first))

    def _plan(self, start: int, planned: Planned) -> None:
        """There, or so much later that it is clear of the allocator's history."""
        while any(
            start < memory_end and memory_start < planned.end for memory_start, memory_end in self._memory_steps()
        ):
            start, planned = start + POSTPONED_STEPS, planned._replace(end=planned.end + POSTPONED_STEPS)
        if start not in self._planned or self._planned[start].is_lean:  # a full one is not lost to a lean one
            self._planned[start] = planned
        self._loop.sampling.want(start - 1, planned.end)

    def _plan_lean(self, window: ProfiledWindow, last: int) -> None:
        """As many steps as the scheduled window had, soon after it, to read times from that it did not bend."""
        if window.planned.why.startswith("schedule") and not (window.is_lean or self._is_asked_for):
            start = last + 1 + LEAN_DISTANCE
            self._plan(start, Planned(start + last + 1 - window.first, is_lean=True, is_alone=False))

    def _plan_triggered(self, number: int) -> None:
        """At this step, where it may be; otherwise the request waits."""
        if number % COMMON_STEPS and _num_ranks() > 1:
            return
        scheduled = [(start, planned.end) for start, planned in self._planned.items()]
        why = None if self._is_program_profiling() else self._requests.take(number, [*scheduled, *self._memory_steps()])
        if why is not None:
            self._planned[number] = Planned(number + TRIGGERED_STEPS, why)

    def _memory_steps(self) -> tuple[StepRange, ...]:
        return self._options.memory_steps if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]

    def _open(self, step: OpenStep, planned: Planned) -> None:
        del self._planned[step.number]
        self._loop.window_begins()
        if self._would_crash():
            self._give_up(step.number, GRAPHS_CRASH)
            return
        if self._is_program_profiling():
            reason = "the program was profiling itself when a window was due, so that window was left out"
            self._note_stopped(step.number, reason)
            return
        if planned.is_alone:  # a lean one has its number: one that still waits would have the wrong one
            self._count += 1
            self._planned = {start: one for start, one in self._planned.items() if one.is_alone}
        self._loop.sampling.want(step.number, planned.end)
        window = self._make(planned, number=self._count, first=step.number)
        self._note(WindowOpened(step=step.number, window=window.name, why=planned.why))
        with ExitStack() as interrupted:  # by Ctrl-C most of all: one left on takes more memory with every step
            interrupted.callback(self._discard, window, step.number)
            self._window = window
            self._opened_ns = self._started_ns = time.thread_time_ns()
            window.start()
            self._started_ns = time.thread_time_ns()
            if planned.num_events:
                self._limit.begin(self._most_ns(window))
            interrupted.pop_all()

    def _would_crash(self) -> bool:
        """CUPTI does in its second window where there are graphs; with those of torch.compile torch has it stay on."""
        if TorchVersion(torch.version.cuda or "12.6") >= "12.6" or os.environ.get("TEARDOWN_CUPTI") == "0":
            return False
        # Some may be older than the recording.
        return self._loop.thread.has_captured or next(living(torch.cuda.CUDAGraph), None) is not None

    def _is_program_profiling(self) -> bool:
        return is_profiling() or self._is_any_running()

    def _is_any_running(self) -> bool:
        return any(is_running(reference()) for reference in self._programs.valuerefs())

    def _note_stopped(self, number: int, reason: str) -> None:
        self._note(CollectorStopped(step=number, collector="windows", reason=reason))

    def _discard(self, window: ProfiledWindow, number: int) -> None:
        self._limit.end()
        self._window, began_ns = None, time.thread_time_ns()
        window.discard()
        self._requests.spend(self._started_ns - self._opened_ns + time.thread_time_ns() - began_ns)
        self._note(WindowClosed(step=number, window=window.name, seconds=window.start_seconds, files=[]))

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
        has_compiled = window.planned.num_events and self._loop.compiled_at >= window.first  # in another thread
        if not self._is_over and (has_compiled or self._holds_more(window)):
            self._try_again(window, last)
            return
        self._limit.end()
        self._window = None
        start = time.perf_counter()
        files = window.write()
        seconds = window.start_seconds + time.perf_counter() - start
        self._spend(window, last)
        self._note(WindowClosed(step=last, window=window.name, seconds=seconds, files=files))
        if files:
            self._plan_lean(window, last)

    def _spend(self, window: ProfiledWindow, last: int) -> None:
        """What passed since it opened, less what its steps take by themselves: by the thread's CPU time, since other
        programs on the machine make it no dearer.
        """
        is_reckoned, num_steps = window.planned.num_events, last + 1 - window.first
        own_ns = self._own_ns(window, last + 1) if is_reckoned else round(num_steps * self._loop.sampling.length_ns)
        cost_ns = max(0, time.thread_time_ns() - self._opened_ns - own_ns)
        if is_reckoned:
            self._events.learn(window.num_events, cost_ns, is_lean=window.is_lean)
        self._requests.spend(cost_ns)


def _num_ranks() -> int:
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if has_ranks else 1


def start(session: Session) -> None:
    if session.options.trace_steps or session.options.triggers:
        loop, requests = session.loop, session.window_requests
        folder, sites = session.rank_folder, session.sites
        make = functools.partial(ProfiledWindow, loop=loop, memory=session.memory, folder=folder, sites=sites)
        windows = Windows(session.options, loop, requests, make, session.note)
        loop.sampling.is_asked = requests.are_waiting
        session.attach("windows", windows)
        if session.options.triggers:
            session.subscribe(loop.light.steps.listeners, "windows", windows.note_light)
        os.register_at_fork(after_in_child=windows.abandon)
        profile = torch.autograd.profiler.profile
        for owner, name, reason in ((profile, "__init__", PROFILES), (torch.utils, "swap_tensors", EXCHANGES)):
            session.before(owner, name, "windows", functools.partial(windows.yield_to_program, reason))
        session.after(profile, "__init__", "windows", windows.note_profiler)
