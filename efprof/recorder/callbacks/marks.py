"""Turns a framework's own events into marks in the recording, which it starts where none runs."""

from typing import Unpack

from efprof.recorder import current
from efprof.recorder.in_code import Recording, Wanted, begin_recording
from efprof.recorder.options import parse_options
from efprof.recorder.session import Session
from efprof.recorder.user_marks import UserMarks


class TrainingMarks:
    """One training at a time; every method does nothing where nothing is recorded."""

    def __init__(self, name: str | None = None, **wanted: Unpack[Wanted]) -> None:
        parse_options(**wanted)  # a wrong option is told here, not hours later
        self._name = name
        self._wanted = wanted
        self._recording: Recording | None = None
        self._marked: _MarkedSteps | None = None

    def record(self) -> None:
        """Start a recording where none runs."""
        if current.session is None:
            self._recording = begin_recording(self._name, **self._wanted)

    def begin(self) -> None:
        """Training begins: from now on steps end where this says."""
        if current.session is not None:
            self._marked = _MarkedSteps(current.session)
            self._marked.begin()

    def made_ready(self) -> None:
        """What ran since the training began was none of its work, unless a loader was started."""
        if self._marked is not None:
            self._marked.begin_first()

    def step_ended(self) -> None:
        """The optimizer has updated the weights."""
        if self._marked is not None:
            self._marked.end_step()

    def evaluated(self) -> None:
        """What ran since the last step was an evaluation."""
        if self._marked is not None:
            self._marked.begin_anew()

    def end(self, error: BaseException | None = None) -> None:
        """Training is over, by this error or in good order; safe to call twice."""
        marked, self._marked = self._marked, None
        recording, self._recording = self._recording, None
        if marked is not None:
            marked.end()
        if recording is not None:
            recording.end(error)


class _MarkedSteps:
    """The marks of one session, guarded."""

    def __init__(self, session: Session) -> None:
        guarded, marks = session.shell.guarded, UserMarks(session.loop)
        self.begin = guarded("loop", marks.training_began)
        self.begin_first = guarded("loop", marks.begin_unless_fetched)
        self.begin_anew = guarded("loop", marks.begin_anew)
        self.end_step = guarded("loop", marks.step_ended)
        self.end = guarded("loop", marks.training_ended)
