"""Turns a framework's own events into marks in the recording, which it starts where none runs."""

from collections.abc import Callable
from typing import Unpack

from efprof.recorder.launch.in_code import Recording, Wanted, begin_recording
from efprof.recorder.loop.user_marks import UserMarks
from efprof.recorder.session import current
from efprof.recorder.session.options import parse_options


class TrainingMarks:
    """One training at a time; every method does nothing where nothing is recorded."""

    def __init__(self, name: str | None = None, **wanted: Unpack[Wanted]) -> None:
        parse_options(**wanted)  # a wrong option is told here, not hours later
        self._name = name
        self._wanted = wanted
        self._recording: Recording | None = None
        self._session: current.Recording | None = None

    def record(self) -> None:
        """Start a recording where none runs."""
        if current.session is None:
            self._recording = begin_recording(self._name, **self._wanted)

    def begin(self) -> None:
        """Training begins: from now on steps end where this says."""
        self._session = current.session
        self.mark(UserMarks.training_began)

    def end(self, error: BaseException | None = None) -> None:
        """Training is over, by this error or in good order; safe to call twice."""
        recording, self._recording = self._recording, None
        self.mark(UserMarks.training_ended)
        self._session = None
        if recording is not None:
            recording.end(error)

    def mark(self, mark: Callable[[UserMarks], None]) -> None:
        """Say what has happened in the training."""
        if self._session is not None:
            self._session.shell.guarded("loop", mark)(self._session.marks)
