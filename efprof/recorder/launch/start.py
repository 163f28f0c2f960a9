"""Starts recording in a process that has just imported torch."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from efprof.recorder.hooks.torch_versions import why_untested
from efprof.recorder.session.options import Options, read_options

if TYPE_CHECKING:
    from efprof.recorder.session.session import Session


PROFILER_LEVEL = "KINETO_LOG_LEVEL"
"""torch's profiler prints two lines at each window; its library reads this when it is first used, and is quiet at 6."""

TOLD = "EFPROF_TORCH_TOLD"
"""Processes that a program starts inherit it: each would tell of the same torch."""


def start() -> None:
    """Start the session this process belongs to; a recorder that cannot start must not stop the training."""
    options = read_options()
    if options is not None:
        start_session(options)


def start_session(options: Options) -> "Session | None":
    """None where the recorder could not start, which has been said then."""
    from efprof.artifacts.events import EVENTS_FILE
    from efprof.recorder.session.shell import Shell
    from efprof.recorder.session.writing import LineWriter, RankFolder

    folder = RankFolder(options.run_folder, waits_for_training=True)
    shell = Shell(folder, LineWriter(folder, EVENTS_FILE))
    session: Session | None = None

    def begin() -> None:
        nonlocal session
        from efprof.recorder.session.endings import watch_child_processes, watch_exits
        from efprof.recorder.session.session import Session

        untested = why_untested(sys.modules["torch"])
        if untested is not None and TOLD not in os.environ:
            os.environ[TOLD] = "1"
            print(f"efprof: {untested}", file=sys.stderr)
        session = Session(options, folder, shell)
        session.start()
        if PROFILER_LEVEL not in os.environ:
            os.environ[PROFILER_LEVEL] = "6"
            session.undo_at_end(be_loud)
        session.undo_at_end(watch_exits(session.endings, shell), watch_child_processes(session.end, begin_anew))

    def be_loud() -> None:
        os.environ.pop(PROFILER_LEVEL, None)

    def begin_anew() -> Callable[[], None] | None:
        anew = start_session(options)
        return None if anew is None else anew.end

    shell.guarded("session", begin)()
    return session
