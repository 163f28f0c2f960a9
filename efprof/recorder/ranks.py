"""Finds the run that the ranks of one launch share, where each of them records itself in code."""

import fcntl
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from efprof.artifacts.run_file import RunFile

_ordinals = itertools.count()
"""Numbers the recordings of this process: the n-th of one rank belongs with the n-th of the others."""


def join_or_make(runs: Path, run: RunFile, make: Callable[[Path, RunFile], Path]) -> Path:
    """The folder of this run under `runs`: the one that a rank beside this process has made, or a new one."""
    ordinal, launch = next(_ordinals), _launch_of_ranks()
    if launch is None:
        return make(runs, run)
    unique = hashlib.sha256(f"{launch} {ordinal}".encode()).hexdigest()[:12]
    with _locked(runs):
        for folder in runs.glob(f"*-{unique}"):
            return folder
        stem = run.run_id.rpartition("-")[0]
        return make(runs, msgspec.structs.replace(run, run_id=f"{stem}-{unique}"))


def _launch_of_ranks() -> str | None:
    """What tells the launch of these ranks on this machine from any other; None where this process is alone."""
    environment = os.environ
    if environment.get("WORLD_SIZE", "1") in ("", "1"):
        return None
    # torchrun starts every rank; Lightning starts the others from rank 0, which alone has no RANK and no LOCAL_RANK.
    is_child = "RANK" in environment or environment.get("LOCAL_RANK", "0") != "0"
    leader = os.getppid() if is_child else os.getpid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        started = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[_START_TIME]
    except OSError:
        return None
    return f"{boot} {leader} {started}"


_START_TIME = 19
"""Where proc(5) puts the ticks from the machine's start to the process's, counted after the command's name."""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; where the folder cannot be had, whoever makes the run folder will say so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
