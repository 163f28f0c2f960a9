"""Starts and stops the collectors inside the training process; the run folder is complete whatever happens."""

import atexit
import importlib
import os
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from efprof import recorder
from efprof.artifacts.events import EVENTS_FILE, WHOLE_RECORDING, CollectorStopped
from efprof.artifacts.run_file import SOURCES_FILE
from efprof.artifacts.steps import STEPS_FILE, StepRecord
from efprof.recorder.budget.light_steps import LightSteps
from efprof.recorder.budget.sampling import Budget, Sampling
from efprof.recorder.hooks.cuda_graphs import watch_captures
from efprof.recorder.hooks.loop_hooks import watch_backward, watch_loaders, watch_optimizers, watch_updates
from efprof.recorder.hooks.module_calls import ModuleCalls
from efprof.recorder.hooks.patching import Undo, call_after, call_before, call_when_cuda_begins
from efprof.recorder.loop.device import Memory, TrainingDevice
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.loop.steps import Listener, Listeners
from efprof.recorder.loop.user_marks import UserMarks
from efprof.recorder.numbers.late_values import LateValues
from efprof.recorder.session import current
from efprof.recorder.session.endings import ExitWatcher
from efprof.recorder.session.options import Options
from efprof.recorder.session.shell import Note, Shell
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from efprof.recorder.windows.triggers import WindowRequests

WITHOUT_COLLECTORS = frozenset({"callbacks", "doctor", "hunt", "launch"})
"""Folders of what runs before the training, or without efprof's start: some would import a framework."""

MAX_LATE_STEPS = 256
"""Steps whose numbers the device still owes; a queue this long means that it never answers."""

MAX_WAIT_S = 5.0


def collector_candidates() -> list[str]:
    """Every module in the recorder's other folders, by its last name; a collector is one that has `start`."""
    modules = pkgutil.walk_packages(recorder.__path__, f"{recorder.__name__}.")
    found = [one.name for one in modules if not one.ispkg and one.name.split(".")[-2] not in WITHOUT_COLLECTORS]
    return sorted(found, key=_last_name)


def _last_name(module: str) -> str:
    return module.rpartition(".")[2]


class Session:
    """What a collector's `start(session)` is given, and the order in which one recording process begins and ends."""

    def __init__(self, options: Options, folder: RankFolder, shell: Shell) -> None:
        self.options = options
        self.run_folder = options.run_folder
        self.shell = shell
        self.device = TrainingDevice(shell.guard("device_memory"))
        self.memory = Memory(self.device)
        self.late_values = LateValues(shell.guard("device_numbers"))
        self.sites = Sites(options.root, LineWriter(folder, SOURCES_FILE).write)
        sampling = Sampling(options.overhead)
        self.budget = Budget(options.overhead, sampling.taken_share)
        self.window_requests = WindowRequests(options.triggers, self.budget, sampling)
        steps = LineWriter(folder, STEPS_FILE)
        self._step_lines = StepLines(steps, lambda: self.loop.light.steps)
        self.loop = Loop(self.memory, shell.guarded("steps", self._step_lines.write), steps.write, sampling)
        self.marks = UserMarks(self.loop)
        self.endings = ExitWatcher(self.loop, self.memory, self.sites)
        self.is_ended = False
        self.rank_folder = folder
        self._events = LineWriter(folder, EVENTS_FILE)
        self.note: Note = self._events.write
        self._undo: list[Undo] = []
        self._at_end: list[Callable[[], None]] = []

    def start(self) -> None:
        loop, shell = self.loop, self.shell
        current.session = self
        self.rank_folder.when_broken = self._break_off
        for essential in ("session", "loop", "steps"):
            shell.when_stopped(essential, self.end)
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)
        guard = shell.guard("loop")
        self._undo += watch_loaders(loop, guard) + watch_backward(loop, guard, self.sites)
        self._undo += watch_optimizers(loop, guard) + watch_updates(loop, guard) + watch_captures(loop, guard)
        self._undo.append(ModuleCalls(loop, shell).remove)
        for module in collector_candidates():
            shell.guarded(_last_name(module), self._start_collector)(module)

    def lines(self, name: str) -> LineWriter:
        """A file of the rank folder; its lines wait until this process shows that it trains."""
        return LineWriter(self.rank_folder, name)

    def subscribe(self, listeners: list[Listener], collector: str, function: Listener) -> None:
        listeners.append(self.shell.guarded(collector, function))

    def listen(self, collector: str, **functions: Listener) -> None:
        """The same of several: each is called by the list of `loop` that has its name."""
        for name, function in functions.items():
            self.subscribe(getattr(self.loop, name), collector, function)

    def attach(self, collector: str, listener: Any) -> None:
        """Have its methods called that have the names of lists of `loop`, and `at_end` when the program ends."""
        for name, listeners in vars(self.loop).items():
            if isinstance(listeners, Listeners) and hasattr(listener, name):
                self.subscribe(listeners, collector, getattr(listener, name))
        if hasattr(listener, "at_end"):
            self.on_end(collector, listener.at_end)

    def on_end(self, collector: str, function: Callable[[], None]) -> None:
        """Have it called when the program ends, before the files are closed; the last one comes first."""
        self._at_end.insert(0, self.shell.guarded(collector, function))

    def before(self, owner: Any, name: str, collector: str, function: Listener) -> None:
        """Have it called with the arguments of this function of torch's or the program's, before that runs."""
        self._undo.append(call_before(owner, name, self.shell.guarded(collector, function)))

    def after(self, owner: Any, name: str, collector: str, function: Listener) -> None:
        """The same once that has returned."""
        self._undo.append(call_after(owner, name, self.shell.guarded(collector, function)))

    def when_cuda_begins(self, collector: str, function: Listener) -> None:
        """Have it called once torch starts CUDA, at once where it has."""
        self._undo.append(call_when_cuda_begins(self.shell.guarded(collector, function)))

    def undo_at_end(self, *undo: Undo) -> None:
        self._undo += undo

    def end(self) -> None:
        """Close what is open and take every hook out; safe to call twice."""
        if self.is_ended:
            return
        self.is_ended = True
        current.session = None
        try:
            self.shell.guarded("ending", self.endings.tell)(self.note)
            self.shell.guarded("loop", self.loop.finish)()
            for function in self._at_end:
                function()
            self.shell.guarded("steps", self._step_lines.await_late)()
        finally:  # a second Ctrl-C must leave none of our hooks in torch
            for undo in reversed(self._undo):
                self.shell.guarded("hooks", undo)()

    def _break_off(self, why: str) -> None:
        """The disk refuses: leave word of it, so that nobody takes what is there for all there was."""
        self._events.write_last(CollectorStopped(step=self.loop.number, collector=WHOLE_RECORDING, reason=why))
        self.end()

    def _start_collector(self, name: str) -> None:
        start = getattr(importlib.import_module(name), "start", None)
        if start is not None:
            start(self)

    def _forget(self) -> None:
        """In a forked child, a data worker most of all: record nothing, write nothing."""
        self.loop.thread.stop()
        self.is_ended = self.endings.is_over = True


@dataclass(eq=False)
class StepLines:
    """Writes full steps; `light` gives the light ones, which write themselves and may await numbers as well."""

    _lines: LineWriter
    _light: Callable[[], LightSteps]
    _late: list[tuple[OpenStep, StepRecord]] = field(default_factory=list)

    def write(self, step: OpenStep, record: StepRecord) -> None:
        """At once: a process that is killed must have lost no step. What the device still owes it is written again."""
        self._lines.write(record)
        if step.late:
            self._late.append((step, record))
        self._write_late()

    def await_late(self) -> None:
        """The training is over: now the device may be waited for, but not for ever, since it may have failed."""
        end = time.monotonic() + MAX_WAIT_S
        self._write_late()
        while (self._late or self._light().awaits_device) and time.monotonic() < end:
            time.sleep(0.001)
            self._write_late()

    def _write_late(self) -> None:
        self._light().write_arrived()  # of those before: the first bad number is the one to be told of
        while self._late:
            step, record = self._late[0]
            step.late = [arrives for arrives in step.late if not arrives()]
            if step.late and len(self._late) < MAX_LATE_STEPS:
                return
            self._lines.write(record)
            del self._late[0]
