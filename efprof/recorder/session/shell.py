"""What stands between the recorder and the training: an error in here never reaches the user's program."""

import errno
import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from efprof.artifacts.events import CollectorStopped, Event
from efprof.model import with_place
from efprof.recorder.session.sites import callers
from efprof.recorder.session.writing import LineWriter, RankFolder, is_of_a_signal

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes the functions of one collector harmless."""

Note = Callable[[Event], None]
"""Writes an event."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENOENT)
"""The disk is full, read-only or gone: that ends the recording, not just the collector that met it."""

DEEP = 1 / 3
"""Of the frames that Python allows: a program that has as many leaves too few for us. Its calls from C count for the
limit and are no frames; a torch module has one to four frames."""


class Shell:
    """Guards every function through which training enters the recorder.

    A collector that raises is stopped: its functions do nothing from then on, one warning goes to standard
    error and one event to events.jsonl. A disk that refuses stops them all.
    """

    def __init__(self, folder: RankFolder, events: LineWriter) -> None:
        self._folder = folder
        self._events = events
        self._stopped = set[str]()
        self._when_stopped: dict[str, Callable[[], None]] = {}
        self._postponed: list[Callable[[], None]] = []
        self._pending_errors: list[BaseException] = []
        self.guard_code: CodeType | None = None
        """Of the function around all that the recorder does."""

    def guarded(self, collector: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, made harmless: its errors are caught, it gives None then, and the first one stops its collector.

        A RecursionError in a deep program stops nothing: it comes of the depth, and next time it may be less deep.
        What the handler of a signal raises within it goes on to the program, which expects it. Of what it asks a tensor
        neither the tensor's class nor a mode of the program's is told.
        """
        stopped, postponed, pending_errors = self._stopped, self._postponed, self._pending_errors

        def call(*args: Any) -> Any:
            answer = None
            if collector not in stopped:
                try:
                    with torch._C.DisableTorchFunction():
                        answer = function(*args)
                except RecursionError as error:
                    try:
                        sys._getframe(int(DEEP * sys.getrecursionlimit()))
                    except ValueError:  # the program is not that deep
                        self._stop(collector, error)
                    except RecursionError:
                        pass
                except Exception as error:  # the recorder's shell: training must go on
                    if is_of_a_signal(error):
                        raise
                    self._stop(collector, error)
            if postponed:
                self._call_postponed(sys._getframe(1))
            if pending_errors:
                raise pending_errors.pop()
            return answer

        self.guard_code = call.__code__
        return call

    def guard(self, collector: str) -> Guard:
        return functools.partial(self.guarded, collector)

    def reraise_later(self, function: Callable[..., None]) -> Callable[..., None]:
        """`function`, for where Python would print an error and go on: the program gets it from what is guarded next.

        A guarded function raises only what the handler of a signal raised in it.
        """

        def call(*args: Any) -> None:
            try:
                function(*args)
            except BaseException as error:
                self._pending_errors.append(error)

        return call

    def when_left(self, function: Callable[[], None]) -> None:
        """Call `function` as soon as nothing guarded runs in this thread: a signal may come in the midst of it."""
        self._postponed.append(function)
        self._call_postponed(sys._getframe(1))

    def when_stopped(self, collector: str, function: Callable[[], None]) -> None:
        """Have `function` called, guarded itself, if this collector is stopped by an error."""
        self._when_stopped[collector] = self.guarded(f"{collector} (its end)", function)

    def is_in(self, frame: FrameType | None) -> bool:
        """True if a function of the recorder's is running in this frame or in one that called it."""
        return any(caller.f_code is self.guard_code for caller in callers(frame))

    def _call_postponed(self, frame: FrameType | None) -> None:
        if self.is_in(frame):
            return
        while self._postponed:
            self._postponed.pop(0)()

    def _stop(self, collector: str, error: Exception) -> None:
        self._stopped.add(collector)
        if isinstance(error, OSError) and error.errno in DISK_ERRORS and self._folder.may_have_refused(error):
            self._folder.give_up(error)
        if not self._folder.is_broken:
            reason = with_place(error)
            print(f"efprof: the {collector} collector stopped, training goes on: {reason}", file=sys.stderr)
            self._events.write(CollectorStopped(step=-1, collector=collector, reason=reason))
        function = self._when_stopped.pop(collector, None)
        if function is not None:
            function()
