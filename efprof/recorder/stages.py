"""Which stage of the open step the training is in, and since when."""

from time import perf_counter_ns

from efprof.recorder.open_step import OpenStep
from efprof.recorder.steps import Steps


class StageClock:
    """Opens and closes stages of the open step; on a device it has them timed there as well."""

    def __init__(self, steps: Steps) -> None:
        self.stage: str | None = None
        self.opener: str | None = None
        """Which entry point opened the stage: it is the one to close it."""
        self._steps = steps
        self._start_ns = 0

    def open(self, step: OpenStep, stage: str, opener: str, entered: int) -> None:
        """A stage begins; its entry point was entered at `entered`."""
        self.stage, self.opener = stage, opener
        if self._steps.clock is not None:
            self._steps.clock.open()
        self._start_ns = now = perf_counter_ns()
        step.recorder_ns += now - max(entered, step.start_ns)

    def close(self, step: OpenStep, entered: int) -> None:
        """It ended at `entered`."""
        step.spans.append((self.stage or "other", self._start_ns, entered))
        if self._steps.clock is not None:
            step.device_marks = step.device_marks or []
            step.device_marks.append(self._steps.clock.close())
        self.stage = self.opener = None

    def take_back(self, step: OpenStep) -> None:
        """The stage that was closed last is none."""
        step.spans.pop()
        if step.device_marks:
            step.device_marks.pop()

    def leave(self) -> None:
        """No stage is open, whatever was."""
        self.stage = self.opener = None
