"""Opens a window at SIGUSR1, and closes the recording in good order at SIGTERM."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from efprof.artifacts.events import RecordingEnded
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.hidden_thread import HiddenThread
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Shell
from efprof.recorder.session.writing import RankFolder, identity_of, is_still

Handler = Callable[[int, FrameType | None], None]

KILL_AFTER_S = 5.0
"""To write an open window, which takes a second or two; launchers and schedulers wait for 10 to 30 s."""

STOP = 0
DEFAULT_IN_C = 0
SIZE_OF_ACTION = 256
"""At least that of `struct sigaction`, whose first field is the function; on Linux it has 152 bytes."""


class Signals:
    """Handles the two signals in the process that trains, from its first step on, unless the program does.

    A child that it forks starts with neither handler: it would have had none without the recorder.
    """

    def __init__(
        self, *, ask: Callable[[str], None] | None, folder: RankFolder, shell: Shell, end: Callable[[], None]
    ) -> None:
        """`ask` has a window opened, and `end` ends the recording."""
        self._folder, self._shell, self._end = folder, shell, end
        self._handlers: dict[int, Handler] = {signal.SIGTERM: self._close}
        if ask is not None:
            self._handlers[signal.SIGUSR1] = lambda *_: ask("signal")
        self._timer = KillTimer()
        self._pythons = dict[int, int]()
        """What the system calls for each, while our handlers are set."""
        self._is_set = False
        self._is_watching = False
        self._is_over = False
        self.ended_by: str | None = None

    def install(self, _: OpenStep) -> None:
        """Set the handlers once; the watch over one of them ends before each fork, and begins again here."""
        if self._is_watching:
            return
        self._is_watching = True
        if not _is_main_thread():
            return
        self._folder.path  # noqa: B018 - who passes a signal on finds this process by what lies there
        if not self._is_set:
            self._is_set = True
            for number, handler in self._handlers.items():
                if signal.getsignal(number) is signal.SIG_DFL and _in_c(number) == DEFAULT_IN_C:
                    signal.signal(number, handler)
            self._pythons = {number: _in_c(number) for number in self._handlers}
        if self._is_ours(signal.SIGTERM):
            self._timer.begin(self._handlers[signal.SIGTERM])

    def stop(self) -> None:
        self._is_over = True
        if _is_main_thread():
            self._timer.end()
            self._reset()

    def before_fork(self) -> None:
        """No thread of ours runs while the process forks: Python warns of that, and it is right."""
        if not self._is_over and _is_main_thread():
            self._timer.end()
            self._is_watching = False

    def after_fork(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._timer.forget()
            self._reset()

    def _close(self, number: int, _: FrameType | None) -> None:
        """Close the recording as soon as no function of it runs, and die of the signal as if there were no handler."""
        if self.ended_by is None:  # a launcher that loses patience sends another while a window is being written
            self.ended_by = signal.Signals(number).name
            self._shell.when_left(self._close_and_die)

    def _close_and_die(self) -> None:
        self._end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _is_ours(self, number: int) -> bool:
        is_pythons = self._pythons.get(number) == _in_c(number)
        return signal.getsignal(number) is self._handlers.get(number) and is_pythons

    def _reset(self) -> None:
        for number in self._handlers:
            if self._is_ours(number):
                signal.signal(number, signal.SIG_DFL)


def start(session: Session) -> None:
    """Wait for the first step: a launcher or a data worker imports torch too, and trains nothing."""
    ask = session.window_requests.ask if "signal" in session.options.triggers else None
    signals = Signals(ask=ask, folder=session.rank_folder, shell=session.shell, end=session.end)

    def note_end() -> None:
        session.note(RecordingEnded(at_ns=time.time_ns(), step=session.loop.number, signal=signals.ended_by))

    session.listen("signals", step_began=signals.install)
    session.on_end("signals", note_end)
    session.undo_at_end(signals.stop)
    guarded = session.shell.guarded
    os.register_at_fork(
        before=guarded("signals", signals.before_fork), after_in_child=guarded("signals", signals.after_fork)
    )


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class KillTimer:
    """A thread that ends this process where SIGTERM's handler has not done so in time.

    Python runs a handler in the main thread, which may hang in a collective call for good, but notes the signal at once
    in a file, which the thread reads.
    """

    def __init__(self) -> None:
        self._writing = -1
        self._identity = (0, 0)
        """Of the pipe, by both its ends; the program may close them, and be given their numbers for its own files."""
        self._thread: HiddenThread | None = None

    def begin(self, handler: object) -> None:
        """Watch over SIGTERM while `handler` handles it; only in the main thread, and not where the program
        listens for signals by such a file itself.
        """
        if (theirs := signal.set_wakeup_fd(-1)) != -1:
            signal.set_wakeup_fd(theirs)
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._writing, self._identity = writing, identity_of(reading)
        self._thread = HiddenThread(partial(_watch, reading, self._identity, handler))

    def end(self) -> None:
        if (thread := self._thread) is not None:
            self.forget()
            if is_still(self._writing, self._identity):
                os.write(self._writing, bytes([STOP]))
                os.close(self._writing)
            thread.join(1)

    def forget(self) -> None:
        """Alone in a forked child, which has no such thread: a signal to it is none of its parent's."""
        if self._thread is not None:
            self._thread, theirs = None, signal.set_wakeup_fd(-1)
            if theirs not in (-1, self._writing):
                signal.set_wakeup_fd(theirs)


def _watch(reading: int, pipe: tuple[int, int], handler: object) -> None:
    with contextlib.suppress(OSError):  # Python would print it
        while is_still(reading, pipe) and (number := os.read(reading, 1)) not in (b"", bytes([STOP])):
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is handler:
                time.sleep(KILL_AFTER_S)
                _die()
        if is_still(reading, pipe):
            os.close(reading)


def _in_c(number: int) -> int:
    """The function that the system calls: `faulthandler.register` sets one that Python does not know of."""
    action = ctypes.create_string_buffer(SIZE_OF_ACTION)
    ctypes.CDLL(None).sigaction(number, None, action)
    return int.from_bytes(action.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


def _die() -> None:
    """What SIGTERM does where nobody handles it; Python's own way to say so is for the main thread alone."""
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)
