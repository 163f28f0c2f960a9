"""Tells of the error that a program turns into its exit code, as in `except Exception: sys.exit(1)`.

Such a program ends without what Python keeps of an error that nobody caught. `raise SystemExit` and `os._exit` are
seen by nobody.
"""

import builtins
import functools
import sys
import threading
from typing import Any, Final, NoReturn

from efprof.recorder.hooks import replace
from efprof.recorder.session import Session
from efprof.recorder.shortages import is_survived

CODES: Final = 256
LONGEST: Final = 1 << 63
"""What is no C long, Python takes for -1."""


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
        return _unless_survived(error.__context__) if is_failure(error.code) else None
    return error


def is_failure(status: object) -> bool:
    """Whether a program that exits with this status gives another code than 0."""
    return exit_code_of(status) != 0


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
        error = _unless_survived(sys.exception()) if is_failure(status) else None
        session.note_exit(status, None if error is None else origin_of(error))


def _unless_survived(error: BaseException | None) -> BaseException | None:
    """A program may end in the handler of Ctrl-C or of a shortage of memory, long after it went on training."""
    return None if error is None or is_survived(error) else error
