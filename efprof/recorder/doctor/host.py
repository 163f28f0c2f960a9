"""What of the host can be recorded, and whether a run can be kept and known again: memory, folder, settings, git."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from efprof.artifacts.settings import read_settings
from efprof.model import EfprofError
from efprof.recorder.doctor.check import Check, Status, essential
from efprof.recorder.machine import kept_configuration, read_git
from efprof.units import GIB, MIB, format_bytes

PROBE_BYTES = 8 * MIB
"""Too large for any allocator's cache."""

LEAST_FREE_BYTES = 100 * MIB
"""Less than two profiler windows of a large model."""

AMPLE_FREE_BYTES = GIB
"""A run with all its windows takes some 100 MiB."""


def checks_of_place(folder: Path, runs: Path) -> Iterator[Check]:
    """For training that is started in `folder` and recorded under `runs`."""
    yield _folder(runs)
    yield _settings(folder)
    yield _git(folder)


def checks_of_memory(torch: ModuleType | None) -> Iterator[Check]:
    """The counters are read by the recorder's own reader."""
    if torch is not None:
        yield _counters(torch)
    yield _memray()


def _folder(runs: Path) -> Check:
    place = next((above for above in (runs, *runs.parents) if above.exists()), Path("/"))
    name = "folder for runs"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        advice = "Set EFPROF_HOME to a folder that can."
        return essential(name, is_met=False, why=f"{runs} cannot be written.", advice=advice)
    free = shutil.disk_usage(place).free
    status: Status = "no" if free < LEAST_FREE_BYTES else "careful" if free < AMPLE_FREE_BYTES else "yes"
    advice = "" if status == "yes" else "Make room, or set EFPROF_HOME to a folder on another disk."
    return Check(name, status, f"{runs} has {format_bytes(free)} free.", advice, is_essential=True)


def _settings(folder: Path) -> Check:
    try:
        settings = read_settings(folder)
        kept_configuration(settings.configuration)
    except EfprofError as error:
        return essential("settings", is_met=False, why=str(error), advice="Mend that file.")
    if settings.file is None:
        return Check("settings", "yes", "There is no efprof.toml, so the defaults hold.")
    return Check("settings", "yes", f"Read from {settings.file}.")


def _git(folder: Path) -> Check:
    if shutil.which("git") is None:
        return Check("git", "no", "It is not installed.", "Install it, so that runs know their commit.")
    git = read_git(folder)
    if git is None:
        why = f"{folder} lies in no repository: runs know neither commit nor branch."
        advice = "Start training inside the repository, so that 'efprof compare' can name branches."
        return Check("git", "no", why, advice)
    return Check("git", "yes", f"{git.root}, branch {git.branch or 'none (detached)'}.")


def _counters(torch: ModuleType) -> Check:
    from efprof.recorder.memory import Memory

    memory, name = Memory(), "host memory counters"
    source = memory.choose()
    if source == "resident set":
        why = "This C library has no mallinfo2 (glibc 2.33 or newer does): memory is read from the resident set."
        return Check(name, "careful", why, "Record on a newer Linux where memory without a GPU matters.")
    before = memory.read()[0]
    probe = torch.ones(PROBE_BYTES, dtype=torch.uint8)
    counted = memory.read()[0] - before
    del probe
    if counted < PROBE_BYTES // 2:
        why = f"The {source} did not count a tensor of {PROBE_BYTES // MIB} MiB: another malloc is preloaded."
        return Check(name, "no", why, "Unset LD_PRELOAD where memory without a GPU matters.")
    return Check(name, "yes", f"The {source} of {' '.join(platform.libc_ver())} counts what torch takes.")


def _memray() -> Check:
    if importlib.util.find_spec("memray") is None:
        why = "It is not installed, so --host-memory is refused."
        return Check("memray", "no", why, "Run 'pip install memray'.")
    return Check("memray", "yes", f"{importlib.metadata.version('memray')}, for --host-memory.")
