"""Records what Python's multiprocessing starts to train: such a process ends without what ends a program."""

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from efprof.recorder.exits import origin_of
from efprof.recorder.hooks import replace
from efprof.recorder.session import Session

SERVANTS = ("torch.utils.data.", "multiprocessing.", "concurrent.")
"""Where the work of a data worker or of a pool begins; such a process serves the one that trains."""

_run = BaseProcess.run


def watch_child_processes(session: Session, begin_anew: Callable[[], Session | None]) -> None:
    """Wrap what every child runs, so that its session ends with its work, and its error is known.

    A child that was forked has no session of its own yet: `begin_anew` starts one, unless it is a servant.
    """
    recorded = os.getpid()

    @functools.wraps(_run)
    def run(self: Any) -> None:
        is_forked = os.getpid() != recorded
        own = session if not is_forked else None if _is_servant(self) else begin_anew()
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


def _is_servant(process: Any) -> bool:
    target = getattr(process, "_target", None)
    return (getattr(target, "__module__", None) or "").startswith(SERVANTS)
