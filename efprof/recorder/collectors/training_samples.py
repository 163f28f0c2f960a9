"""Samples which line of the user's the training thread is at, in steps recorded in full outside of windows.

The profiler slows Python several times, and does not see the lines of a loop that calls nothing. Samples do neither.
"""

import os
import sys
import threading
import time
from collections import Counter
from functools import partial
from random import Random
from types import CodeType
from typing import NamedTuple

from efprof.artifacts.events import ANOMALY, SampledPlace, TrainingSampled
from efprof.artifacts.readings import least_long_step
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.collectors.worker_samples import MAX_JOIN_S
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.hidden_thread import HiddenThread
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note, Shell
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.stacks import Call, calls_of
from efprof.recorder.session.writing import OWN_FOLDER

FIRST_STEP = 3
"""Those before warm up."""
PER_STEP = 20
MIN_PERIOD_S, MAX_PERIOD_S = 0.001, 0.02
"""Between two samples; within these bounds a step has PER_STEP of them."""
TURN_S = 0.000005
"""For so long the training's Python runs on when the thread asks for its turn; in practice 60 us, the timers' slack.
Python that comes to an operator sooner is counted at the operator's line."""
MAX_SAMPLES = 600
"""A share of a fifth is then known to 3 points."""
SAMPLE_NS = 200_000
"""What a sample costs, most of it to wait for Python's lock and to pass it on."""
WAITING = ("asyncio", "concurrent", "multiprocessing", "queue", "selectors", "socket", "subprocess", "threading")
OWN_WORK = (sys.stdlib_module_names | {"numpy"}).difference(WAITING)
"""Modules that do in Python what a line asks for, as to draw a sample: that is the line's own work."""
FORMATS_STACK = "torch.fx.traceback.format_stack"
"""What anomaly detection calls for each operation."""


class Place(NamedTuple):
    code: CodeType
    line: int
    stage: str
    is_in_library: bool
    """Whether Python code of a library runs, called from this line."""
    function: str
    """Of the library, which the line calls."""


class TrainingSamples:
    """Has a thread that samples between the begin and the end of a step, and waits otherwise.

    A sample counts for the time since the one before: C code may hold Python's lock for long.
    """

    def __init__(self, loop: Loop, sites: Sites, budget: Budget, note: Note, shell: Shell) -> None:
        self._loop, self._sites, self._budget, self._note = loop, sites, budget, note
        self._sample = shell.guarded("training_samples", self._sample_steps)
        self._is_on = threading.Event()
        self._thread: HiddenThread | None = None
        self._random = Random(0)
        self._period_s, self._switch_s = MIN_PERIOD_S, sys.getswitchinterval()
        self._last_ns = self._num_of_step = self._num_samples = self._num_written = 0
        self._of_step = Counter[Place | None]()
        self._ns = Counter[Place | None]()

    def step_began(self, step: OpenStep) -> None:
        self._pause()  # a step that trained nothing has no end
        if step.number < FIRST_STEP or self._num_samples >= MAX_SAMPLES:
            return
        if self._thread is None:
            self._thread = HiddenThread(partial(self._sample, self._is_on))
        self._of_step, self._num_of_step, self._last_ns = Counter(), 0, time.perf_counter_ns()
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(TURN_S)
        self._is_on.set()

    def step_ended(self, _: OpenStep, record: StepRecord) -> None:
        is_long = record.total_us > least_long_step(self._loop.sampling.length_ns / 1000, unit_per_ms=1000)
        if not self._pause() or record.window is not None or is_long:  # what makes some steps long is in no other
            return
        self._ns.update(dict(self._of_step))  # the thread may be about to add its last
        self._num_samples += self._num_of_step
        self._period_s = min(MAX_PERIOD_S, max(MIN_PERIOD_S, record.total_us / 1e6 / PER_STEP))
        self._budget.spend("samples", self._num_of_step * SAMPLE_NS)
        if self._num_samples >= MAX_SAMPLES:
            self.stop()
        elif self._num_samples >= max(PER_STEP, 2 * self._num_written):
            self.write()

    def step_dropped(self, *_: object) -> None:
        self._pause()

    def stop(self) -> None:
        """End the thread: a program that forks would be warned of it."""
        self._pause()
        thread, self._thread = self._thread, None
        if thread:
            is_on, self._is_on = self._is_on, threading.Event()
            is_on.set()
            thread.join(MAX_JOIN_S)

    def write(self) -> None:
        """What was sampled so far."""
        lines = Counter[tuple[str, str, bool, str]]()
        for place, spent_ns in self._ns.items():
            if place is not None:
                site = self._sites.of_line(place.code, place.line)
                lines[site, place.stage, place.is_in_library, place.function] += spent_ns
        self._note(
            TrainingSampled(
                step=self._loop.number,
                num_samples=self._num_samples,
                total_us=self._ns.total() / 1000,
                lines=[
                    SampledPlace(site, stage, is_in_library, spent_ns / 1000, function)
                    for (site, stage, is_in_library, function), spent_ns in lines.items()
                ],
            )
        )
        self._num_written = self._num_samples

    def at_end(self) -> None:
        self.stop()
        if self._num_samples > self._num_written:
            self.write()

    def _pause(self) -> bool:
        """Whether the thread was on."""
        if was_on := self._is_on.is_set():
            self._is_on.clear()
            if sys.getswitchinterval() < 2 * TURN_S:  # the program has set no other
                sys.setswitchinterval(self._switch_s)
        return was_on

    def _sample_steps(self, is_on: threading.Event) -> None:
        while is_on is self._is_on:
            is_on.wait()
            time.sleep(self._period_s * self._random.uniform(0.5, 1.5))
            if self._is_on.is_set():
                stage, calls = self._loop.clock.stage, calls_of(self._loop.thread.ident)
                is_ours = bool(calls) and calls[0].file.startswith(OWN_FOLDER)
                place = self._place(stage, calls) if self._loop.clock.stage == stage else None
                now = time.perf_counter_ns()
                if self._is_on.is_set():  # the step is not over
                    if not is_ours:
                        self._of_step[place] += now - self._last_ns
                        self._num_of_step += 1
                    self._last_ns = now

    def _place(self, stage: str | None, calls: list[Call]) -> Place | None:
        """None of what no line of the user's has called."""
        is_in_library, function = False, ""
        for call in calls:
            if self._sites.is_user_code(code := call.code):
                return Place(code, call.line or code.co_firstlineno, stage or "other", is_in_library, function)
            if not call.file.startswith(OWN_FOLDER):  # what stands around a function of torch's
                is_in_library |= str(call.names.get("__name__")).partition(".")[0] not in OWN_WORK
                if function != ANOMALY:
                    function = ANOMALY if call.full_name == FORMATS_STACK else call.full_name
        return None


def start(session: Session) -> None:
    samples = TrainingSamples(session.loop, session.sites, session.budget, session.note, session.shell)
    session.attach("training_samples", samples)
    os.register_at_fork(before=session.shell.guarded("training_samples", samples.stop))
