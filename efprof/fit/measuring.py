"""Runs a training command for a few steps at one batch size, and reads how much memory it needed at most."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from efprof.artifacts.events import WindowClosed, events_of
from efprof.artifacts.steps import read_steps
from efprof.facts.device.device_memory import DeviceMemory
from efprof.facts.gpu_estimate.gpu_estimate import GpuEstimate
from efprof.facts.run.run import Run, open_run
from efprof.model import EfprofError, NotRecorded, ThinEvidence, UnreadableInput
from efprof.processes import last_line, own_path, started

PLACE = "{batch}"
"""What stands for the batch size in the command."""

WINDOW = "3:4"
"""Steps whose every allocation is recorded: the first ones make the optimizer's state, and memory settles."""

NUM_STEPS = 8
"""After these the run is ended: a step more than what the windows need."""

MAX_SECONDS = 600.0
"""A run that has not come so far by then is ended, and said to be too slow."""

POLL_SECONDS = 0.2


def measure_peak(command: Sequence[str], batch: int) -> int | None:
    """The peak in bytes, of the device where there is one, else of tensors on the host; None where memory ran out.

    Raises EfprofError where the command fails for another reason, or trains nothing.
    """
    words = [word.replace(PLACE, str(batch)) for word in command]
    with TemporaryDirectory(prefix="efprof-fit-") as home:
        said = _run_some_steps(words, Path(home))
        folders = list((Path(home) / "runs").glob("*/run.json"))
        if not folders:
            raise EfprofError(f"'{' '.join(words)}' could not be recorded: {said}")
        run = open_run(folders[0].parent)
        if run.run_file.ended == "out_of_memory":
            return None
        peak = _peak_bytes(run)
    if peak is None:
        raise EfprofError(f"'{' '.join(words)}' trained no step whose memory could be read; it said last: {said}")
    return peak


def _run_some_steps(command: list[str], home: Path) -> str:
    """What it said last; it is ended once enough of it is recorded."""
    options = ["--trace-steps", WINDOW, "--triggers", "none", "--no-holders", "--no-diff"]
    recorder = [sys.executable, "-m", "efprof", "record", *options, "--", *command]
    environment = {**os.environ, "EFPROF_HOME": str(home), "PATH": own_path()}
    log, end = home / "output.txt", time.monotonic() + MAX_SECONDS
    with started(recorder, folder=None, environment=environment, log=log) as running:
        while not running.wait(POLL_SECONDS) and time.monotonic() < end:
            if any(_is_enough(rank) for rank in (home / "runs").glob("*/rank*")):
                break
    return last_line(log)


def _is_enough(rank: Path) -> bool:
    """Whether the steps are done and each window that was opened is written."""
    try:
        steps, _ = read_steps(rank)
    except (NotRecorded, UnreadableInput):
        return False
    return len(steps) >= NUM_STEPS and bool(events_of(rank, WindowClosed))


def _peak_bytes(run: Run) -> int | None:
    """The highest instant of the windows; None without one.

    On a CPU what the tensors took is played anew from the window's events: readings count all of the process.
    """
    memory = run.find(DeviceMemory, UnreadableInput)
    if memory is not None:
        return max(device.replay.peak_reserved_recorded_bytes for device in memory.devices)
    estimate = run.find(GpuEstimate, UnreadableInput, ThinEvidence)
    return None if estimate is None else estimate.peak_allocated_bytes
