"""Leaves word that steps were told apart without a torch optimizer."""

import time

from efprof.artifacts.events import StepsWithoutOptimizer
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session


def start(session: Session) -> None:
    """Wait for the first update that no torch optimizer made."""

    def note(step: OpenStep) -> None:
        session.note(StepsWithoutOptimizer(at_ns=time.time_ns(), step=step.number))

    session.subscribe(session.loop.steps.manual_updates_found, "manual_updates", note)
