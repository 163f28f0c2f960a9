"""Runs a command for so many seconds, and leaves no process of it behind. It needs the standard library alone."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATIENCE_S = 8.0
"""A command that is interrupted has so long to write what it has."""


def run_for(
    seconds: float, command: Sequence[str], environment: Mapping[str, str], *, output: Path, errors: Path
) -> int | None:
    """Its exit code; None where the time was up. It is interrupted before that, so that all ends in time."""
    ends_at = time.monotonic() + seconds
    with output.open("wb") as out, errors.open("wb") if errors != output else out as err:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(environment), stdout=out, stderr=err, start_new_session=True
        )
        try:
            return process.wait(max(0.0, seconds - PATIENCE_S))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, ends_at - time.monotonic()))
            return None
        finally:
            _kill_session(process)


def _kill_session(process: "subprocess.Popen[bytes]") -> None:
    """What the command started may run on, and hold the device's memory."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
