"""Leaves word of what recording cost, and of updates without a torch optimizer or by a thread that is not recorded."""

from efprof.artifacts.events import OtherThreadTrained, RecordingCost, StepsWithoutOptimizer
from efprof.artifacts.steps import StepRecord
from efprof.recorder.budget.sampling import ALLOWANCE_NS, EARLY_STEPS, Budget, LightStep
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note


class Cost:
    def __init__(self, budget: Budget, loop: Loop, note: Note) -> None:
        self._budget, self._loop, self._note = budget, loop, note
        self._steps_ns = self._num_full = 0

    def step_ended(self, step: OpenStep, record: StepRecord) -> None:
        """No more than the CPU time of all of it: on a busy machine the first steps would use up the allowance."""
        self._add(step.number, min(step.recorder_ns, round(record.cpu_us * 1000)))
        self._num_full += 1

    def add_light(self, steps: list[LightStep]) -> None:
        for step in steps:
            self._add(step.number, step.cost_ns)

    def _add(self, number: int, cost_ns: int) -> None:
        """The first steps use up some of the allowance; later ones have their own half of the share."""
        if number < EARLY_STEPS:
            self._budget.spend("first steps", cost_ns)
        else:
            self._steps_ns += cost_ns

    def at_end(self) -> None:
        if not self._num_full:
            return
        spent = {"steps": self._steps_ns, **self._budget.spent_ns}
        self._note(
            RecordingCost(
                step=self._loop.number,
                allowance_s=ALLOWANCE_NS / 1e9,
                share=self._budget.share,
                seconds={what: ns / 1e9 for what, ns in spent.items()},
                num_full_steps=self._num_full,
            )
        )


def start(session: Session) -> None:
    """Listen to the ends of all steps, and to such updates: the first is told, and at the end how many there were."""
    cost, thread = Cost(session.budget, session.loop, session.note), session.loop.thread

    def note_other() -> None:
        all_told = thread.num_updates_elsewhere if session.is_ended else None
        if all_told != 0:
            session.note(OtherThreadTrained(step=session.loop.number, num_updates=all_told))

    session.attach("cost", cost)
    session.subscribe(session.loop.light.steps.listeners, "cost", cost.add_light)
    session.subscribe(
        session.loop.steps.manual_updates_found,
        "unrecorded_updates",
        lambda step: session.note(StepsWithoutOptimizer(step=step.number)),
    )
    session.subscribe(thread.updated_elsewhere, "unrecorded_updates", note_other)
    session.on_end("unrecorded_updates", note_other)
