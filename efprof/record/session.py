"""Starts and stops the collectors inside the training process; the run folder is complete whatever happens."""

import atexit
import importlib
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from efprof.artifacts.events import EVENTS_FILE, Event, OutOfMemory, StepInterrupted, TrainingRaised
from efprof.artifacts.sources import SOURCES_FILE
from efprof.artifacts.steps import STEPS_FILE, StepRecord
from efprof.record import collectors
from efprof.record.hooks import ForwardWatch, Undo, watch_backward, watch_loaders, watch_optimizers
from efprof.record.loop import Listener, Loop, OpenStep
from efprof.record.memory import memory_reader
from efprof.record.options import Options
from efprof.record.shell import Shell
from efprof.record.sites import Sites
from efprof.record.writing import LineWriter

MAX_LATE_STEPS = 16
"""Steps whose numbers the device still owes; a queue this long means that it never answers."""


class Session:
    """One recording process: what every collector needs, and the order of its end."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.run_folder = options.run_folder
        self.memory_source, read_memory = memory_reader()
        self.read_memory = read_memory
        self._rank_folder: Path | None = None
        self._steps = LineWriter(self.rank_folder, STEPS_FILE)
        self._events = LineWriter(self.rank_folder, EVENTS_FILE)
        self.sites = Sites(options.root, LineWriter(self.rank_folder, SOURCES_FILE))
        self.shell = Shell(self._events)
        self.loop = Loop(read_memory, self.shell.guarded("steps", self._write_when_whole))
        self._late: list[tuple[OpenStep, StepRecord]] = []
        self._undo: list[Undo] = []
        self._at_end: list[Callable[[], None]] = []
        self._is_ended = False

    def start(self) -> None:
        """Hook into torch and start every collector in the folder."""
        loop, shell = self.loop, self.shell
        self._undo += watch_loaders(loop, shell) + watch_backward(loop, shell, self.sites)
        self._undo += [*watch_optimizers(loop, shell), ForwardWatch(loop, shell).remove]
        for module in pkgutil.iter_modules(collectors.__path__):
            start = importlib.import_module(f"{collectors.__name__}.{module.name}").start
            shell.guarded(module.name, start)(self)
        self._watch_the_end()

    def rank_folder(self) -> Path:
        """This process's folder, made when something is first written: a child that never trains leaves none."""
        if self._rank_folder is None:
            number = int(os.environ.get("RANK", "0"))
            while True:
                folder = self.run_folder / f"rank{number}"
                try:
                    folder.mkdir()
                except FileExistsError:  # a second training process of this run that torchrun did not number
                    number += 1
                    continue
                self._rank_folder = folder
                break
        return self._rank_folder

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
        return self.loop.step.number if self.loop.step is not None else self.loop.num_steps

    def end(self) -> None:
        """Close what is open and take every hook out; safe to call twice."""
        if self._is_ended or not self.loop.is_on:
            return
        self._is_ended = True
        self.shell.guarded("loop", self.loop.finish)()
        for function in self._at_end:
            function()
        self.shell.guarded("steps", self._write_late)(True)
        for undo in reversed(self._undo):
            undo()

    def _write_when_whole(self, step: OpenStep, record: StepRecord) -> None:
        self._late.append((step, record))
        self._write_late(False)

    def _write_late(self, is_end: bool) -> None:
        while self._late:
            step, record = self._late[0]
            if step.late is not None and not step.late() and not is_end and len(self._late) < MAX_LATE_STEPS:
                return
            self._steps.write(record)
            del self._late[0]

    def _watch_the_end(self) -> None:
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)
        previous = sys.excepthook

        def note_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if self.loop.is_on:
                self.shell.guarded("ending", self._note_exception)(error, trace)
            previous(kind, error, trace)

        sys.excepthook = note_exception

    def _forget(self) -> None:
        """In a forked child, a data worker most of all: record nothing, write nothing."""
        self.loop.is_on = False

    def _note_exception(self, error: BaseException, trace: TracebackType | None) -> None:
        loop, now, number = self.loop, time.time_ns(), self.step_number
        if loop.step is not None:
            allocated, reserved = self.read_memory()
            stage = loop.failed_stage or loop.stage or "other"
            self.note(
                StepInterrupted(at_ns=now, step=number, stage=stage, allocated_bytes=allocated, reserved_bytes=reserved)
            )
        frames = [frame for frame, _ in traceback.walk_tb(trace)]
        lines = {id(frame): line for frame, line in traceback.walk_tb(trace)}
        sites = [
            f"{self.sites.file(frame.f_code.co_filename)}:{lines[id(frame)]}:{frame.f_code.co_qualname}"
            for frame in frames
            if self.sites.is_user_code(frame.f_code)
        ]
        if _is_out_of_memory(error):
            self.note(OutOfMemory(at_ns=now, step=number, message=str(error), site=sites[-1] if sites else None))
        self.note(
            TrainingRaised(
                at_ns=now, step=number, error=type(error).__name__, message=str(error), stage=loop.stage, sites=sites
            )
        )


def _is_out_of_memory(error: Any) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    # torch's CPU allocator raises a plain RuntimeError with this text.
    return isinstance(error, RuntimeError) and "not enough memory: you tried to allocate" in str(error)
