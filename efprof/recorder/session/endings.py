"""What ends a run: the code that the program exits with, the error behind it, memory that ran out, the end of a child.

`except Exception: sys.exit(1)` ends a program without what Python keeps of an error that nobody caught. `raise
SystemExit`, `exit()` and `os._exit` are seen by nobody.
"""

import dis
import functools
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from efprof.artifacts.events import Event, OutOfMemory, StepInterrupted, TrainingRaised
from efprof.artifacts.memory_messages import TENSOR, library_in
from efprof.model import RecorderPart
from efprof.recorder.hooks.loop_hooks import failed_stage
from efprof.recorder.hooks.patching import Undo, call_before, replace
from efprof.recorder.loop.device import Memory
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.redaction import without_secrets
from efprof.recorder.session.shell import Note, Shell
from efprof.recorder.session.sites import Sites, user_file_of

MAX_CAUSES = 100
"""Of an error, in a row; they may go round in a circle."""

PARTS = ("certain", "possible", "apart", "none")
"""Of several errors, one raised from another, the first of these counts."""

RECORDER = f"{Path(__file__).parents[1]}{os.sep}"


def origin_of(error: BaseException) -> BaseException | None:
    """The error, or what made the program exit; None where it exits because all is well."""
    if isinstance(error, SystemExit):
        return error.__context__ if exit_code_of(error.code) else None
    return error


def exit_code_of(status: object) -> int:
    """The code that a program gives which exits with this status; of a text that Python prints then, 1."""
    if status is None:
        return 0
    return status % 256 if isinstance(status, int) else 1


@dataclass(eq=False)
class ExitWatcher:
    """What the program asks for its end with, and what is to be told of the error that ended it."""

    _loop: Loop
    _memory: Memory
    _sites: Sites
    _exit: tuple[object, int] = (None, 0)
    """What the program asked for its end with last, and in which step."""
    _exit_events: Sequence[Event] = ()
    is_over: bool = False
    events: Sequence[Event] = ()
    """Of the error that ended the program, once it has."""

    @property
    def exit_status(self) -> object:
        """What the program asked for its end with; None where it went on training all the same."""
        status, number = self._exit
        return status if number == self._loop.number else None

    def note_exit(self, status: object, error: BaseException | None) -> None:
        """The program asks for its end because of this error, which is told then, unless it goes on training.

        As text only: the error would keep alive whatever the program's functions held.
        """
        if not self.is_over:
            self._exit = status, self._loop.number
            self._exit_events = () if error is None else self._events_of(error)

    def tell(self, note: Note) -> None:
        """The program ends: note its error, which Python keeps whatever `sys.excepthook` the program has set."""
        self.is_over = True
        error = getattr(sys, "last_value", None)
        events = self._events_of(error) if isinstance(error, BaseException) else self._exit_events
        if events and events[-1].step == self._loop.number:
            self.events = events
            for event in events:
                note(event)

    def _events_of(self, error: BaseException) -> list[Event]:
        events, now, number = list[Event](), time.time_ns(), self._loop.number
        stage = failed_stage(error)
        if self._loop.step is not None or self._loop.light.is_on:
            stage = stage or "other"
            allocated, reserved = self._memory.read()[:2]
            events.append(
                StepInterrupted(
                    at_ns=now,
                    step=number,
                    stage=stage,
                    allocated_bytes=allocated,
                    reserved_bytes=reserved,
                    peak_bytes=self._memory.highest_mark(),
                )
            )
        # Not an error that was being handled, which may be of long before.
        out_of_memory = next(filter(_is_out_of_memory, _causes(error)), None)
        if out_of_memory is not None:
            at, told = self._sites_of(out_of_memory), without_secrets(str(out_of_memory))
            site, is_for_tensor = at[-1] if at else None, not isinstance(out_of_memory, MemoryError)
            events.append(OutOfMemory(at_ns=now, step=number, message=told, site=site, is_for_tensor=is_for_tensor))
        kind, message, sites = type(error).__name__, without_secrets(str(error)), self._sites_of(error)
        parts = [self._part_in(one) for one in _causes(error, with_context=True)]
        part = "none" if out_of_memory else min(parts, key=PARTS.index)
        events.append(
            TrainingRaised(
                at_ns=now, step=number, error=kind, message=message, stage=stage, sites=sites, recorder_part=part
            )
        )
        return events

    def _part_in(self, error: BaseException) -> RecorderPart:
        """The recorder's, as far as the traceback tells, from the outermost frame to the innermost."""
        if user_file_of(type(error), self._sites):
            return "none"
        part: RecorderPart = "apart"
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            operation = dis.opname[code.co_code[trace.tb_lasti]]
            if self._sites.is_user_code(code):
                part = "none" if operation == "RAISE_VARARGS" else "apart"
            elif code.co_filename.startswith(RECORDER):
                # At a call it came of a function in C, of torch's or the program's.
                part = "possible" if operation.startswith("CALL") else "certain"
            elif part == "certain":
                part = "possible"
            trace = trace.tb_next
        return part

    def _sites_of(self, error: BaseException) -> list[str]:
        return [
            self._sites.of_line(frame.f_code, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if self._sites.is_user_code(frame.f_code)
        ]


SERVING = ("torch.utils.data.", "multiprocessing.", "concurrent.")
"""Where the work of a data worker or of a pool begins; such a process serves the one that trains."""

_run = BaseProcess.run


def watch_exits(endings: ExitWatcher, shell: Shell) -> Undo:
    def note_status(status: object = None) -> None:
        if threading.current_thread() is threading.main_thread():  # of another thread it ends that alone
            error = sys.exception() if exit_code_of(status) else None
            endings.note_exit(status, None if error is None else origin_of(error))

    return call_before(sys, "exit", shell.guarded("exits", note_status))


def watch_child_processes(end: Callable[[], None], begin_anew: Callable[[], Callable[[], None] | None]) -> Undo:
    """Wrap what every child runs, so that its recording ends with its work, and its error is known.

    A child that was forked has no recording of its own yet: `begin_anew` starts one, unless the child serves another
    process, and gives what ends it.
    """
    recorded = os.getpid()

    @functools.wraps(_run)
    def run(self: Any) -> None:
        is_forked, module = os.getpid() != recorded, getattr(getattr(self, "_target", None), "__module__", None)
        end_own = end if not is_forked else None if (module or "").startswith(SERVING) else begin_anew()
        if end_own is None or multiprocessing.parent_process() is None:
            return _run(self)
        try:
            return _run(self)
        except BaseException as error:  # torch.multiprocessing makes an exit of it
            sys.last_value = origin_of(error)  # where `ExitWatcher.tell` looks for what ended the program
            raise
        finally:
            end_own()

    return replace(BaseProcess, "run", run)


def _causes(error: BaseException | None, *, with_context: bool = False) -> Iterator[BaseException]:
    """The error, and what it was raised from; or `with_context` what was being handled as it was raised."""
    for _ in range(MAX_CAUSES):
        if error is not None:
            yield error
            handled = error.__context__ if with_context and not error.__suppress_context__ else None
            error = error.__cause__ or handled


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return TENSOR in str(error) or (on_device and library_in(str(error)) is not None)
