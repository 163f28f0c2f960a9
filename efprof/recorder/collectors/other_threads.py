"""Leaves word that another thread trained too, whose steps are not recorded."""

import time

from efprof.artifacts.events import OtherThreadTrained
from efprof.recorder.session import Session


def start(session: Session) -> None:
    """Wait for the first update by a thread that is not the recorded one; at the end, tell how many there were."""
    others = session.loop.steps.others

    def note(num_updates: int | None = None) -> None:
        session.note(OtherThreadTrained(at_ns=time.time_ns(), step=session.step_number, num_updates=num_updates))

    def note_all() -> None:
        if others.num_updates:
            note(others.num_updates)

    session.subscribe(others.trained, "other_threads", note)
    session.on_end("other_threads", note_all)
