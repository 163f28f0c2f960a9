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
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from efprof.recorder.hooks.loop_hooks import replace
from efprof.recorder.session.exit_errors import exit_code_of, origin_of, unless_survived

if TYPE_CHECKING:
    from efprof.recorder.session.session import Session

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


def _note(session: Session, status: object) -> None:
    if threading.current_thread() is threading.main_thread():  # of another thread it ends that alone
        error = unless_survived(sys.exception()) if exit_code_of(status) else None
        session.note_exit(status, None if error is None else origin_of(error))


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
