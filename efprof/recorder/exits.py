"""Tells what ended a program: an error that it made an exit code of, one of a child process, memory that ran out.

`except Exception: sys.exit(1)` ends a program without what Python keeps of an error that nobody caught, and what
multiprocessing starts to train ends without what ends a program. `raise SystemExit` and `os._exit` are seen by nobody.
"""

from __future__ import annotations

import builtins
import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from efprof.recorder.hooks import replace

if TYPE_CHECKING:
    from efprof.recorder.session import Session

CODES: Final = 256
LONGEST: Final = 1 << 63
"""What is no C long, Python takes for -1."""

MARK: Final = "_efprof_survived"
"""Set on the error itself: its id is given to another one as soon as it is gone, and few errors can be referred to
weakly."""

SHORTAGES: Final = ("memory: you tried to allocate", "error: out of memory")
"""Of torch's CPU allocator, which says "can't allocate" or, on Windows, "not enough"; and of CUDA or HIP itself, where
it was no tensor of torch's that was asked for: an AcceleratorError, before torch 2.8 a plain RuntimeError."""

SERVANTS = ("torch.utils.data.", "multiprocessing.", "concurrent.")
"""Where the work of a data worker or of a pool begins; such a process serves the one that trains."""

_run = BaseProcess.run


def watch_exits(session: Session) -> None:
    """Wrap `sys.exit`, and `exit` and `quit` of the prompt, which scripts call too."""
    note = session.shell.guarded("exits", functools.partial(_note, session))
    leave, prompt = sys.exit, type(getattr(builtins, "exit", None))

    @functools.wraps(leave)
    def exit_noted(status: object = None, /) -> NoReturn:
        note(status)
        leave(status)  # type: ignore[arg-type]

    session.undo_at_end([replace(sys, "exit", exit_noted)])
    if prompt.__name__ == "Quitter":
        quit_prompt: Any = prompt.__call__

        @functools.wraps(quit_prompt)
        def quit_noted(self: Any, code: object = None) -> None:
            note(code)
            quit_prompt(self, code)

        session.undo_at_end([replace(prompt, "__call__", quit_noted)])


def origin_of(error: BaseException) -> BaseException | None:
    """The error, or what made the program exit; None where it exits because all is well."""
    if isinstance(error, SystemExit):
        return _unless_survived(error.__context__) if exit_code_of(error.code) else None
    return error


def exit_code_of(status: object) -> int:
    """The code that a program gives which exits with this status.

    Python prints what is no integer, 0.0 and NumPy's 0 too, and gives 1; POSIX keeps the lowest byte of the others.
    """
    if status is None:
        return 0
    if not isinstance(status, int):
        return 1
    return status % CODES if -LONGEST <= status < LONGEST else CODES - 1


def _note(session: Session, status: object) -> None:
    if threading.current_thread() is threading.main_thread():  # of another thread it ends that alone
        error = _unless_survived(sys.exception()) if exit_code_of(status) else None
        session.note_exit(status, None if error is None else origin_of(error))


def _unless_survived(error: BaseException | None) -> BaseException | None:
    """A program may end in the handler of Ctrl-C or of a shortage of memory, long after it went on training."""
    return None if error is None or is_survived(error) else error


def shortage_behind(error: BaseException) -> BaseException | None:
    """The shortage of memory that this error is, or was raised from.

    One that was only being handled when the error came counts where the program had not gone on training by then, and
    never behind Ctrl-C, which comes at any time.
    """
    is_named = True
    for link in _links_of(error):
        if _is_shortage(link) and (is_named or not is_survived(link)):
            return link
        is_named = is_named and link.__cause__ is not None
        if isinstance(link, KeyboardInterrupt) and not is_named:
            return None
    return None


def note_survival(*_: object) -> None:
    """To be called when an optimizer steps: what is being handled meanwhile did not end the training."""
    for link in _links_of(sys.exception()):
        if _is_shortage(link) or isinstance(link, KeyboardInterrupt):
            vars(link)[MARK] = True


def is_survived(error: BaseException) -> bool:
    """Whether it is a shortage or Ctrl-C in whose handler the program went on training."""
    return MARK in vars(error)


def _links_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it was raised from, as a traceback prints them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in SHORTAGES)


def watch_child_processes(session: Session, begin_anew: Callable[[], Session | None]) -> None:
    """Wrap what every child runs, so that its session ends with its work, and its error is known.

    A child that was forked has no session of its own yet: `begin_anew` starts one, unless it is a servant.
    """
    recorded = os.getpid()

    @functools.wraps(_run)
    def run(self: Any) -> None:
        is_forked, module = os.getpid() != recorded, getattr(getattr(self, "_target", None), "__module__", None)
        own = session if not is_forked else None if (module or "").startswith(SERVANTS) else begin_anew()
        if own is None or multiprocessing.parent_process() is None:
            return _run(self)
        with ExitStack() as ending:
            ending.callback(own.end)
            ending.push(_keep_error)
            return _run(self)

    session.undo_at_end([replace(BaseProcess, "run", run)])


def _keep_error(_: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
    if error is not None:  # torch.multiprocessing makes an exit of it
        sys.last_value = origin_of(error)  # where the session looks for what ended the program
