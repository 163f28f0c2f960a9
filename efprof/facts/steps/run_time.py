"""What the wall time of a whole run went to: usual steps, long ones, and what lies between and around them."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from statistics import median
from typing import Self

import numpy as np
from numpy.typing import NDArray

from efprof.artifacts.events import RecordingCost, events_of
from efprof.artifacts.readings import least_long_step, read_evaluations, read_long_steps
from efprof.facts.run.run import Run
from efprof.facts.steps.step_times import StepTime, StepTimes
from efprof.model import NotRecorded, frozen_dataclass

OTHER, START, BETWEEN, USUAL, LONG, EVALUATION, RECORDER = range(7)
"""The parts. Where several hold for an instant, the last of them is counted."""
LABELS = ("other", "start", "between epochs", "usual steps", "long steps", "evaluation", "recorder")


@frozen_dataclass
class RunTime:
    """The seconds of each part by its label, which add up to the run's duration."""

    seconds: dict[str, float]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded without steps, and where the training was started more than once."""
        every = run.get(StepTimes).every
        if len(run.attempts) > 1:
            raise NotRecorded("The training was started more than once; steps are those of the last attempt.")
        least_ms = least_long_step(median(time.total_ms for time in every), unit_per_ms=1)
        began_s = datetime.fromisoformat(run.run_file.started).timestamp()
        spans = [
            _span(
                LONG if time.total_ms > least_ms and time.record.window is None else USUAL,
                time.record.started_ns,
                time.total_ms / 1000,
            )
            for time in every
        ]
        spans += [(START, began_s, spans[0][1]), (BETWEEN, spans[0][1], spans[-1][2])]
        with suppress(NotRecorded):
            spans += [_span(LONG, step.started_ns, step.seconds) for step in read_long_steps(run.rank_folder)]
        spans += [_span(EVALUATION, each.started_ns, each.total_us / 1e6) for each in read_evaluations(run.rank_folder)]
        end_s = began_s + (run.run_file.duration_s or max(end for _, _, end in spans) - began_s)
        seconds = _seconds_of_parts([(OTHER, began_s, end_s), *spans], began_s, end_s)
        _take_out_recorder(seconds, run, every)
        return cls(seconds=dict(zip(LABELS, seconds.tolist(), strict=True)))

    @property
    def training_s(self) -> float:
        """From the first step to the last, without the recorder's part."""
        return sum(self.seconds[LABELS[part]] for part in (BETWEEN, USUAL, LONG, EVALUATION))


def _span(part: int, started_ns: int, seconds: float) -> tuple[int, float, float]:
    """The part, and its start and end in seconds of the epoch."""
    return part, started_ns / 1e9, started_ns / 1e9 + seconds


def _seconds_of_parts(spans: list[tuple[int, float, float]], began_s: float, end_s: float) -> NDArray[np.float64]:
    rows = np.array(spans)
    edges, places = np.unique(np.clip(rows[:, 1:], began_s, end_s), return_inverse=True)
    part_between = np.zeros(len(edges) - 1, int)
    for part in range(len(LABELS)):
        opened, closed = (np.bincount(at, minlength=len(edges)) for at in places.reshape(-1, 2)[rows[:, 0] == part].T)
        part_between[np.cumsum(opened - closed)[:-1] > 0] = part
    return np.bincount(part_between, np.diff(edges), minlength=len(LABELS)).astype(float)


def _take_out_recorder(seconds: NDArray[np.float64], run: Run, every: Sequence[StepTime]) -> None:
    """Take its cost by its own clock out of what it lies in: windows and counts come between two steps if they can."""
    cost_s = sum(time.recorder_ms for time in every) / 1000
    for cost in events_of(run.rank_folder, RecordingCost)[-1:]:
        cost_s += cost.beside_steps_s
    for part in (BETWEEN, USUAL, LONG):
        taken_s = min(cost_s, seconds[part])
        seconds[part] -= taken_s
        seconds[RECORDER] += taken_s
        cost_s -= taken_s
