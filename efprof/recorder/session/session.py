"""Starts and stops the collectors inside the training process; the run folder is complete whatever happens."""

import atexit
import functools
import importlib
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from efprof import recorder
from efprof.artifacts.events import (
    EVENTS_FILE,
    WHOLE_RECORDING,
    CollectorStopped,
    Event,
    OutOfMemory,
    StepInterrupted,
    TrainingRaised,
)
from efprof.artifacts.run_file import SOURCES_FILE
from efprof.artifacts.steps import STEPS_FILE, StepRecord
from efprof.recorder.budget.sampling import Budget, Sampling
from efprof.recorder.hooks.cuda_graphs import watch_captures
from efprof.recorder.hooks.loop_hooks import (
    Undo,
    failed_stage,
    watch_backward,
    watch_loaders,
    watch_optimizers,
    watch_updates,
)
from efprof.recorder.hooks.module_calls import ModuleCalls
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.memory import Memory
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.loop.steps import Listener
from efprof.recorder.loop.training_device import TrainingDevice
from efprof.recorder.loop.user_marks import UserMarks
from efprof.recorder.numbers.late_values import LateValues
from efprof.recorder.session import current
from efprof.recorder.session.exit_errors import note_survival, shortage_behind
from efprof.recorder.session.options import Options
from efprof.recorder.session.redaction import without_secrets
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder

MAX_LATE_STEPS = 256
"""Steps whose numbers the device still owes; a queue this long means that it never answers."""

MIN_WINDOW_NS = 500_000_000
"""What a window costs at least; how much it is on this machine, the first one shows."""

MAX_WAIT_S = 5.0
"""For those numbers, once the training is over."""


WITHOUT_COLLECTORS = frozenset({"callbacks", "doctor", "launch"})
"""Folders of what runs before the training, or without efprof's start: some would import a framework."""


def collector_candidates() -> list[str]:
    """Every module in the recorder's other folders, by its last name; a collector is one that has `start`."""
    found: list[str] = []
    for folder in pkgutil.iter_modules(recorder.__path__):
        if folder.ispkg and folder.name not in WITHOUT_COLLECTORS:
            package = importlib.import_module(f"{recorder.__name__}.{folder.name}")
            found += [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    return sorted(found, key=_last_name)


def _last_name(module: str) -> str:
    return module.rpartition(".")[2]


class Session:
    """One recording process: what every collector needs, and the order of its end."""

    def __init__(self, options: Options, folder: RankFolder, shell: Shell) -> None:
        self.options = options
        self.run_folder = options.run_folder
        self.shell = shell
        self.device = TrainingDevice(functools.partial(shell.guarded, "device_memory"))
        self.memory = Memory(self.device)
        self.late_values = LateValues(functools.partial(shell.guarded, "device_numbers"))
        self.sites = Sites(options.root, LineWriter(folder, SOURCES_FILE))
        self._steps = LineWriter(folder, STEPS_FILE)
        sampling = Sampling(options.overhead)
        self.budget = Budget(options.overhead, sampling.taken_share)
        self.loop = Loop(self.memory, shell.guarded("steps", self._write_when_whole), self._steps.write, sampling)
        self.marks = UserMarks(self.loop)
        self.window_requests: list[str] = []
        """Why a window is wanted as soon as one may open; `ask_for_window` appends, `windows` takes."""
        self.is_collecting = False
        """Whether the recorder itself has garbage collected, which tells nothing of the program's."""
        self.window_cost_ns = MIN_WINDOW_NS
        """What the last profiler window cost: the next one may begin where as much is left."""
        self.loader_numbers: WeakKeyDictionary[DataLoader[object], int] = WeakKeyDictionary()
        self._folder = folder
        self._events = LineWriter(folder, EVENTS_FILE)
        self._exit: tuple[object, int] = (None, 0)
        """What the program asked for its end with last, and in which step."""
        self._exit_events: list[Event] = []
        self.end_events: Sequence[Event] = ()
        """What is told of the error that ended the program, once it has."""
        self._late: list[tuple[OpenStep, StepRecord]] = []
        self._undo: list[Undo] = []
        self._at_end: list[Callable[[], None]] = []
        self.is_ended = False

    def start(self) -> None:
        """Hook into torch and start every collector in the folder."""
        loop, shell = self.loop, self.shell
        current.session = self
        self._folder.when_broken = self._break_off
        for essential in ("session", "loop", "steps"):
            shell.when_stopped(essential, self.end)
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)
        self._undo += watch_loaders(loop, shell, self.loader_numbers) + watch_backward(loop, shell, self.sites)
        self._undo += watch_optimizers(loop, shell) + watch_updates(loop, shell) + watch_captures(loop, shell)
        self._undo.append(ModuleCalls(loop, shell).remove)
        loop.sampling.is_asked = self.awaits_window
        self.subscribe(loop.optimizer_began, "shortages", note_survival)
        for module in collector_candidates():
            shell.guarded(_last_name(module), self._start_collector)(module)

    @property
    def rank_folder(self) -> Path:
        """This process's folder in the run; raises OSError where it cannot be made."""
        return self._folder.path

    def lines(self, name: str) -> LineWriter:
        """A file of the rank folder; its lines wait until this process shows that it trains."""
        return LineWriter(self._folder, name)

    def subscribe(self, listeners: list[Listener], collector: str, function: Listener) -> None:
        """Have a collector's function called by the loop, guarded."""
        listeners.append(self.shell.guarded(collector, function))

    def on_end(self, collector: str, function: Callable[[], None]) -> None:
        """Have it called when the program ends, before the files are closed; the last one comes first."""
        self._at_end.insert(0, self.shell.guarded(collector, function))

    def undo_at_end(self, undo: list[Undo]) -> None:
        """Take these hooks out when the program ends."""
        self._undo += undo

    def note(self, event: Event) -> None:
        """Append to events.jsonl."""
        self._events.write(event)

    @property
    def step_number(self) -> int:
        """The number of the open step, or of the next one."""
        return self.loop.number

    @property
    def exit_status(self) -> object:
        """What the program asked for its end with; None where it went on training all the same."""
        status, number = self._exit
        return status if number == self.step_number else None

    def end(self) -> None:
        """Close what is open and take every hook out; safe to call twice."""
        if self.is_ended:
            return
        self.is_ended = True
        current.session = None
        try:
            self.shell.guarded("ending", self._note_last_error)()
            self.shell.guarded("loop", self.loop.finish)()
            self.shell.guarded("loop", self.loop.thread.stop)()
            for function in self._at_end:
                function()
            self.shell.guarded("steps", self._await_late)()
        finally:  # a second Ctrl-C must leave none of our hooks in torch
            for undo in reversed(self._undo):
                self.shell.guarded("hooks", undo)()

    def note_exit(self, status: object, error: BaseException | None) -> None:
        """The program asks for its end because of this error, which is told then, unless it goes on training.

        As text only: the error would keep alive whatever the program's functions held.
        """
        if self.is_ended:
            return
        self._exit = status, self.step_number
        self._exit_events = [] if error is None else self._events_of(error)

    def ask_for_window(self, why: str) -> None:
        """Have one opened at the next step that it may open at; from a signal's handler, too."""
        self.window_requests.append(why)
        self.loop.sampling.look_at = 0

    def awaits_window(self) -> bool:
        """Whether one is asked for that may open: the budget stands against all but those that a person asks for."""
        asked = self.window_requests
        may_open = bool(self.options.trace_steps or self.options.triggers)
        return bool(asked) and may_open and ("signal" in asked or self.budget.affords(self.window_cost_ns))

    def _break_off(self, why: str) -> None:
        """The disk refuses: leave word of it, so that nobody takes what is there for all there was."""
        self._events.write_last(
            CollectorStopped(at_ns=time.time_ns(), step=self.step_number, collector=WHOLE_RECORDING, reason=why)
        )
        self.end()

    def _start_collector(self, name: str) -> None:
        start = getattr(importlib.import_module(name), "start", None)
        if start is not None:
            start(self)

    def _write_when_whole(self, step: OpenStep, record: StepRecord) -> None:
        """At once: a process that is killed must have lost no step. What the device still owes it is written again."""
        self._steps.write(record)
        if step.late:
            self._late.append((step, record))
        self._write_late()

    def _write_late(self) -> None:
        self.loop.light.steps.write_arrived()  # of those before: the first bad number is the one to be told of
        while self._late:
            step, record = self._late[0]
            step.late = [arrives for arrives in step.late or () if not arrives()]
            if step.late and len(self._late) < MAX_LATE_STEPS:
                return
            self._steps.write(record)
            del self._late[0]

    def _await_late(self) -> None:
        """The training is over: now the device may be waited for, but not for ever, since it may have failed."""
        end, light = time.monotonic() + MAX_WAIT_S, self.loop.light.steps
        self._write_late()
        while (self._late or light.awaits_device) and time.monotonic() < end:
            time.sleep(0.001)
            self._write_late()

    def _forget(self) -> None:
        """In a forked child, a data worker most of all: record nothing, write nothing."""
        self.loop.forget()
        self.is_ended = True

    def _note_last_error(self) -> None:
        """The error that ends the program; Python keeps it here, whatever `sys.excepthook` the program has set."""
        error = getattr(sys, "last_value", None)
        events = self._events_of(error) if isinstance(error, BaseException) else self._exit_events
        if events and events[-1].step == self.step_number:
            self.end_events = events
            for event in events:
                self.note(event)

    def _events_of(self, error: BaseException) -> list[Event]:
        events: list[Event] = []
        is_in_step = self.loop.step is not None or self.loop.light.is_on
        stage = failed_stage(error) or ("other" if is_in_step else None)
        now, number = time.time_ns(), self.step_number
        if is_in_step:
            allocated, reserved = self.memory.read()[:2]
            events.append(
                StepInterrupted(
                    at_ns=now, step=number, stage=stage or "other", allocated_bytes=allocated, reserved_bytes=reserved
                )
            )
        message = without_secrets(str(error))
        sites = self._sites_of(error)
        shortage = shortage_behind(error)
        if shortage is not None:
            at, told = self._sites_of(shortage), without_secrets(str(shortage))
            site, is_for_tensor = at[-1] if at else None, not isinstance(shortage, MemoryError)
            events.append(OutOfMemory(at_ns=now, step=number, message=told, site=site, is_for_tensor=is_for_tensor))
        kind = type(error).__name__
        events.append(TrainingRaised(at_ns=now, step=number, error=kind, message=message, stage=stage, sites=sites))
        return events

    def _sites_of(self, error: BaseException) -> list[str]:
        """The user's lines of its traceback, outermost first."""
        return [
            self.sites.of_line(frame.f_code, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if self.sites.is_user_code(frame.f_code)
        ]
