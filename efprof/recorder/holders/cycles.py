"""Watches what Python's garbage collector frees, and looks once which reference cycle it was that kept it.

All generations are watched: where a step leaves few objects, each with much memory, it is the youngest that frees them.
A collection that is not looked at costs 0.9 us beside the 35 us of the collection itself (measured).
"""

import gc
import time

from efprof.artifacts.holders import CYCLES_FILE, CollectedGarbage, LargeCollection
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.holders.garbage import look_at_garbage, may_look
from efprof.recorder.loop.device import Memory
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import RankFolder

MIN_FREED_BYTES = 1024**2
MIN_FREED_SHARE = 0.05
"""Of what was allocated. 19 collections in thirteen healthy programs of the tests freed 0.0 MiB each (measured)."""

STEPS_APART = 4
"""A collection that comes sooner after a large one, as by hand in every step, frees little that piled up."""

STEPS_PILED = 2
"""Since the last collection that may have freed the garbage: one of them is over, and what it left is looked at."""

LARGE_BEFORE_LOOK = 2
"""What only one collection finds is what the start of the program left; each further look takes twice as many."""

READING_SHARE = 0.001
"""Of the time, for reading memory around collections."""

MAX_LISTED = 200
"""Large collections in the file; the rest is only counted."""


class Cycles:
    def __init__(
        self, loop: Loop, memory: Memory, sites: Sites, budget: Budget, folder: RankFolder, guard: Guard
    ) -> None:
        self._loop, self._memory, self._sites, self._budget, self._folder = loop, memory, sites, budget, folder
        self._started, self._stopped = guard(self._start), guard(self._stop)
        self._due_ns = 0
        self._before: int | None = None
        self._found = CollectedGarbage(num_read=0, num_large=0, collections=[], cycles=[])
        self._last_apart = self._last_collected = self._generation = 0
        self._num_apart, self._due_at = 0, LARGE_BEFORE_LOOK
        self._write_at = LARGE_BEFORE_LOOK

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            if info["generation"] == 2 or time.perf_counter_ns() >= self._due_ns:
                self._started()
            return
        if self._before is not None:
            self._stopped(info["generation"])
        if info["generation"] >= self._generation:
            self._last_collected = self._loop.number

    def step_ended(self, _: object, record: StepRecord) -> None:
        """Look at a step whose garbage nobody has freed yet, and write what there is for a process that is killed."""
        is_piled = record.step >= self._last_collected + STEPS_PILED
        if is_piled and self._num_apart >= self._due_at and not record.window:
            self._due_at *= 2
            if not self._found.cycles and may_look():
                self._look()
            self.write()
        elif self._found.num_large >= self._write_at:  # in every step, maybe: none is apart from them
            self.write()

    def write(self) -> None:
        if self._loop.steps.num_finished:
            self._write_at = 2 * self._found.num_large
            self._folder.write_json(CYCLES_FILE, self._found)

    def _start(self) -> None:
        loop = self._loop
        if loop.thread.is_training_thread and loop.steps.num_finished and not self._memory.is_collecting:
            self._before = self._memory.read()[0]

    def _stop(self, generation: int) -> None:
        assert self._before is not None
        before, self._before = self._before, None
        began_ns = time.perf_counter_ns()
        freed = before - self._memory.read()[0]
        now = time.perf_counter_ns()
        self._due_ns = now + round(2 * (now - began_ns) / READING_SHARE)
        step, found = self._loop.number, self._found
        found.num_read += 1
        if freed < max(MIN_FREED_BYTES, MIN_FREED_SHARE * before):
            return
        found.num_large += 1
        self._generation = generation
        if step >= self._last_apart + STEPS_APART:
            self._num_apart += 1
            self._last_apart = step
            if self._num_apart == self._due_at:
                self._loop.sampling.want(step, step + STEPS_PILED + 1)
        if len(found.collections) < MAX_LISTED:
            found.collections.append(LargeCollection(at_ns=time.time_ns(), before_bytes=before, freed_bytes=freed))

    def _look(self) -> None:
        began_ns = time.thread_time_ns()
        self._loop.mark_interrupted()
        self._memory.is_collecting = True
        try:
            self._found.cycles = look_at_garbage(self._generation, self._sites)
        finally:
            self._memory.is_collecting = False
        if self._found.cycles:
            self._sites.keep_all()  # the statement that closes the cycle may stand in any of them
        self._budget.spend("cycles", time.thread_time_ns() - began_ns)


def start(session: Session) -> None:
    guard = session.shell.guard("cycles")
    cycles = Cycles(session.loop, session.memory, session.sites, session.budget, session.rank_folder, guard)
    called = session.shell.reraise_later(cycles)
    gc.callbacks.append(called)

    def remove() -> None:
        if called in gc.callbacks:  # the program may have emptied the list
            gc.callbacks.remove(called)

    session.undo_at_end(remove)
    session.attach("cycles", cycles)
    session.on_end("cycles", cycles.write)
