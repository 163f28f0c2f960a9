"""Opens a window at SIGUSR1."""

import os
import signal
import threading
from types import FrameType

from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session


class WindowSignal:
    """Handles SIGUSR1 in the process that trains, from its first step on, unless the program does.

    A launcher or a data worker imports torch too, and trains nothing. A child that is forked starts without the
    handler: it would have had none without the recorder.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_first = True

    def install(self, _: OpenStep) -> None:
        if self._is_first and threading.current_thread() is threading.main_thread():
            self._session.rank_folder  # noqa: B018 - who passes a signal on finds this process by what lies there
            if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
                signal.signal(signal.SIGUSR1, self._ask)
        self._is_first = False

    def reset(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGUSR1) == self._ask:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    def _ask(self, _: int, __: FrameType | None) -> None:
        self._session.window_requests.ask("signal")


def start(session: Session) -> None:
    if "signal" in session.options.triggers:
        handling = WindowSignal(session)
        session.subscribe(session.loop.step_began, "signals", handling.install)
        session.undo_at_end([handling.reset])
        os.register_at_fork(after_in_child=session.shell.guarded("signals", handling.reset))
