"""Has stages timed on the device, once CUDA is there; it is not started for it."""

import functools
from typing import Any

import torch

from efprof.recorder.device_clock import DeviceClock
from efprof.recorder.session import Session


def start(session: Session) -> None:
    """Wait for the program to initialise CUDA by itself."""
    if torch.version.cuda is None and torch.version.hip is None:
        return

    def begin() -> None:
        session.loop.steps.clock = DeviceClock(guard=functools.partial(session.shell.guarded, "device_times"))

    guarded: Any = session.shell.guarded("device_times", begin)
    torch.cuda._lazy_call(guarded)  # type: ignore[no-untyped-call]
