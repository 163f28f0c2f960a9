"""Leaves word of what recording cost, and of updates without a torch optimizer or by a thread that is not recorded."""

import os
from contextlib import suppress
from pathlib import Path

from efprof.artifacts.events import OtherThreadTrained, RecordingCost, StepsWithoutOptimizer
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import ALLOWANCE_NS, EARLY_STEPS, Budget, LightStep
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.writing import KeptFile


class Cost:
    def __init__(self, budget: Budget, loop: Loop, note: Note) -> None:
        self._budget, self._loop, self._note = budget, loop, note
        self._steps_ns, self._num_full = 0.0, 0
        self._core = CoreShare()

    def add_full(self, step: OpenStep, _: StepRecord) -> None:
        self._add(step.number, step.recorder_ns * self._core.read())
        self._num_full += 1

    def add_light(self, steps: list[LightStep]) -> None:
        share = self._core.read()
        for step in steps:
            self._add(step.number, step.cost_ns * share)

    def _add(self, number: int, cost_ns: float) -> None:
        """The first steps use up some of the allowance; later ones have their own half of the share."""
        if number < EARLY_STEPS:
            self._budget.spend("first steps", round(cost_ns))
        else:
            self._steps_ns += cost_ns

    def note(self) -> None:
        if not self._num_full:
            return
        spent = {"steps": self._steps_ns, **self._budget.spent_ns}
        event = RecordingCost(
            step=self._loop.number,
            allowance_s=ALLOWANCE_NS / 1e9,
            share=self._budget.share,
            seconds={what: ns / 1e9 for what, ns in spent.items()},
            num_full_steps=self._num_full,
        )
        self._note(event)


class CoreShare:
    """Of the time in which this thread could run, the share in which it had a core and no other program; from Linux."""

    def __init__(self) -> None:
        self._file: KeptFile | None = None
        self._last = (0, 0)
        with suppress(OSError):
            self._file = KeptFile(Path("/proc/thread-self/schedstat"), os.O_RDONLY)

    def read(self) -> float:
        """Since the last time; 1 where the system does not tell."""
        if self._file is None:
            return 1.0
        ran, waited, _ = map(int, os.pread(self._file.descriptor(), 64, 0).split())
        (last_ran, last_waited), self._last = self._last, (ran, waited)
        could = ran - last_ran + waited - last_waited
        return (ran - last_ran) / could if could else 1.0


def start(session: Session) -> None:
    """Listen to the ends of all steps, and to such updates: the first is told, and at the end how many there were."""
    cost, thread = Cost(session.budget, session.loop, session.note), session.loop.thread

    def note_manual(step: OpenStep) -> None:
        session.note(StepsWithoutOptimizer(step=step.number))

    def note_other() -> None:
        all_told = thread.num_updates_elsewhere if session.is_ended else None
        if all_told != 0:
            session.note(OtherThreadTrained(step=session.loop.number, num_updates=all_told))

    session.subscribe(session.loop.step_ended, "cost", cost.add_full)
    session.subscribe(session.loop.light.steps.listeners, "cost", cost.add_light)
    session.on_end("cost", cost.note)
    session.subscribe(session.loop.steps.manual_updates_found, "unrecorded_updates", note_manual)
    session.subscribe(thread.updated_elsewhere, "unrecorded_updates", note_other)
    session.on_end("unrecorded_updates", note_other)
