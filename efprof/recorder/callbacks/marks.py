"""Turns a framework's own events into marks in the recording, which it starts where none runs."""

from time import perf_counter_ns
from typing import Unpack

from efprof.recorder import current
from efprof.recorder.in_code import Recording, Wanted, begin_recording
from efprof.recorder.options import parse_options
from efprof.recorder.session import Session


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
    """The steps of one session while they are marked."""

    def __init__(self, session: Session) -> None:
        guarded = session.shell.guarded
        self._loop = session.loop
        self._steps = session.loop.steps
        self.begin = guarded("loop", self._begin)
        self.begin_first = guarded("loop", self._begin_first)
        self.begin_anew = guarded("loop", self._begin_anew)
        self.end_step = guarded("loop", session.loop.mark_step)
        self.end = guarded("loop", self._end)

    def _begin(self) -> None:
        if self._loop.sprint is not None:
            self._loop.sprint.leave()  # its steps are not in `_steps` yet
        self._steps.finish_last(perf_counter_ns())
        self._steps.has_marks = True
        self._begin_anew()

    def _begin_first(self) -> None:
        step = self._steps.open
        if step is None or not step.spans:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """The next step begins now; one that has gradients already goes on, for it was interrupted."""
        step = self._steps.open
        if step is None or not step.has_gradients:
            self._drop()
            self._steps.begin(perf_counter_ns())

    def _end(self) -> None:
        self._steps.finish_last(perf_counter_ns())
        self._steps.has_marks = False
        step = self._steps.open
        if step is not None and not step.has_gradients:
            self._drop()

    def _drop(self) -> None:
        step, self._steps.open = self._steps.open, None
        if step is not None:
            for listener in self._steps.dropped:
                listener(step)
