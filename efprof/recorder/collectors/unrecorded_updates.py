"""Leaves word of updates that are recorded otherwise, or not: without a torch optimizer, and by another thread."""

import time

from efprof.artifacts.events import OtherThreadTrained, StepsWithoutOptimizer
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session


def start(session: Session) -> None:
    """Wait for the first of each; at the end, tell how many there were by other threads."""
    steps = session.loop.steps

    def note_manual(step: OpenStep) -> None:
        session.note(StepsWithoutOptimizer(at_ns=time.time_ns(), step=step.number))

    def note_other(num_updates: int | None = None) -> None:
        session.note(OtherThreadTrained(at_ns=time.time_ns(), step=session.step_number, num_updates=num_updates))

    def note_all_others() -> None:
        if steps.others.num_updates:
            note_other(steps.others.num_updates)

    session.subscribe(steps.manual_updates_found, "unrecorded_updates", note_manual)
    session.subscribe(steps.others.trained, "unrecorded_updates", note_other)
    session.on_end("unrecorded_updates", note_all_others)
