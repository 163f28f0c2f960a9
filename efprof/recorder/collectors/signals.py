"""Opens a window at SIGUSR1, and closes the recording in good order at SIGTERM."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from efprof.artifacts.events import RecordingEnded, StepInterrupted
from efprof.recorder.failed_stage import stage_of_stack
from efprof.recorder.grace import Grace
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session

Handler = Callable[[int, FrameType | None], None]


class Signals:
    """Handles the two signals in the process that trains, from its first step on, unless the program does.

    A child that it forks starts with neither handler: it would have had none without the recorder.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handlers: dict[int, Handler] = {signal.SIGTERM: self._close}
        if "signal" in session.options.triggers:
            self._handlers[signal.SIGUSR1] = self._ask_for_window
        self._grace = Grace()
        self._is_set = False
        self._is_standing = False
        self._is_over = False
        self._ended_by: str | None = None
        self._stage: str | None = None
        """In which the program was then."""

    def stand(self, _: OpenStep) -> None:
        """Set the handlers once; the watch over one of them ends before each fork, and begins again here."""
        if self._is_standing:
            return
        self._is_standing = True
        if not _is_main_thread():
            return
        self._session.rank_folder  # noqa: B018 - who passes a signal on finds this process by what lies there
        if not self._is_set:
            self._is_set = True
            for number, handler in self._handlers.items():
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, handler)
        if self._is_ours(signal.SIGTERM):
            self._grace.begin(self._handlers[signal.SIGTERM])

    def stop(self) -> None:
        """Give the signals back."""
        self._is_over = True
        if _is_main_thread():
            self._grace.end()
            self._reset()

    def note_end(self) -> None:
        """Leave word that the recording was closed."""
        self._session.note(RecordingEnded(at_ns=time.time_ns(), step=self._session.step_number, signal=self._ended_by))

    def before_fork(self) -> None:
        """No thread of ours runs while the process forks: Python warns of that, and it is right."""
        if not self._is_over and _is_main_thread():
            self._grace.end()
            self._is_standing = False

    def after_fork(self) -> None:
        """In the child."""
        if not self._is_over:
            self._is_over = True
            self._grace.forget()
            self._reset()

    def _ask_for_window(self, *_: Any) -> None:
        self._session.ask_for_window("signal")

    def _close(self, number: int, frame: FrameType | None) -> None:
        """Close the recording as soon as no function of it runs, and die of the signal as if there were no handler."""
        if self._ended_by is None:  # a launcher that loses patience sends another while a window is being written
            self._ended_by = signal.Signals(number).name
            self._stage = stage_of_stack(frame)
            self._session.shell.when_left(self._close_and_die)

    def _close_and_die(self) -> None:
        self._session.shell.guarded("signals", self._note_step)()
        self._session.end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _note_step(self) -> None:
        loop = self._session.loop
        is_within = loop.light.is_on or (loop.step is not None and not loop.step.stepped)
        if is_within:
            allocated, reserved = self._session.memory.read()[:2]
            self._session.note(
                StepInterrupted(
                    at_ns=time.time_ns(),
                    step=loop.number,
                    stage=self._stage or "other",
                    allocated_bytes=allocated,
                    reserved_bytes=reserved,
                )
            )

    def _is_ours(self, number: int) -> bool:
        return signal.getsignal(number) is self._handlers.get(number)

    def _reset(self) -> None:
        for number in self._handlers:
            if self._is_ours(number):
                signal.signal(number, signal.SIG_DFL)


def start(session: Session) -> None:
    """Wait for the first step: a launcher or a data worker imports torch too, and trains nothing."""
    signals = Signals(session)
    session.subscribe(session.loop.step_began, "signals", signals.stand)
    session.on_end("signals", signals.note_end)
    session.undo_at_end([signals.stop])
    guarded = session.shell.guarded
    os.register_at_fork(
        before=guarded("signals", signals.before_fork), after_in_child=guarded("signals", signals.after_fork)
    )


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
