"""Runs a training command for a few steps at one batch size, and reads how much memory it needed at most."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from efprof.artifacts.events import WindowClosed, events_of
from efprof.artifacts.steps import BoundaryMemory, read_steps
from efprof.facts.gpu_estimate.gpu_estimate import GpuEstimate
from efprof.facts.run.run import Run, open_run
from efprof.model import EfprofError, NotRecorded, ThinEvidence, UnreadableInput
from efprof.processes import last_line, own_path, started

PLACE = "{batch}"
"""What stands for the batch size in the command."""

WINDOW = "3:4"
"""Steps whose allocations are recorded, for a CPU: the first ones make the optimizer's state, and memory settles."""

NUM_STEPS = 8
"""After these the run is ended: memory has settled, and the window is written."""

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
        if run.run_file.ended == "raised":
            raise EfprofError(f"'{' '.join(words)}' failed; it said last: {said}")
        peak = _peak_bytes(run)
    if peak is None:
        raise EfprofError(f"'{' '.join(words)}' trained no step whose memory could be read; it said last: {said}")
    return peak


def _run_some_steps(command: list[str], home: Path) -> str:
    """What it said last; it is ended once enough of it is recorded."""
    options = ["--trace-steps", WINDOW, "--memory-steps", "none", "--triggers", "none", "--no-holders", "--no-diff"]
    recorder = [sys.executable, "-m", "efprof", "record", *options, "--", *command]
    environment = {**os.environ, "EFPROF_HOME": str(home), "PATH": own_path()}
    log, end = home / "output.txt", time.monotonic() + MAX_SECONDS
    with started(recorder, folder=None, environment=environment, log=log) as running:
        while not running.wait(POLL_SECONDS) and time.monotonic() < end:
            if any(_is_enough(rank) for rank in (home / "runs").glob("*/rank*")):
                break
    return last_line(log)


def _is_enough(rank: Path) -> bool:
    """True if the steps are done and, on a CPU, the window is written."""
    try:
        steps, _ = read_steps(rank)
    except (NotRecorded, UnreadableInput):
        return False
    is_known = bool(_device_readings(rank) or events_of(rank, WindowClosed))
    return len(steps) >= NUM_STEPS and is_known


def _peak_bytes(run: Run) -> int | None:
    """Returns the most that a rank's device had reserved, by its allocator, or the most tensors took on a CPU at once.

    Returns None if no step tells. A CPU's readings count all of the process, so its window's allocations are replayed.
    """
    peaks = list[int]()
    for rank in run.rank_folders:
        with suppress(NotRecorded):
            peaks += [here.peak_reserved_bytes or here.reserved_bytes for here in _device_readings(rank)]
    if peaks:
        return max(peaks)
    estimate = run.find(GpuEstimate, UnreadableInput, ThinEvidence)
    return None if estimate is None else estimate.peak_allocated_bytes - estimate.workspace_bytes


def _device_readings(rank: Path) -> list[BoundaryMemory]:
    """Returns what the CUDA allocator told at the boundaries of all steps; raises NotRecorded if there is none."""
    return [here for step in read_steps(rank)[0] for here in step.memory if here.active_bytes is not None]
