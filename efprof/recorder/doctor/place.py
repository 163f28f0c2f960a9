"""Whether a run can be kept and known again: the folder for runs, the settings, git."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from efprof.artifacts.settings import read_settings
from efprof.model import EfprofError
from efprof.recorder.doctor.check import Check, Status, essential
from efprof.recorder.machine import kept_configuration, read_git
from efprof.units import GIB, MIB, format_bytes

LEAST_FREE_BYTES = 100 * MIB
"""Less than two profiler windows of a large model."""

AMPLE_FREE_BYTES = GIB
"""A run with all its windows takes some 100 MiB."""


def checks(folder: Path, runs: Path) -> Iterator[Check]:
    """For training that is started in `folder` and recorded under `runs`."""
    yield _folder(runs)
    yield _settings(folder)
    yield _git(folder)


def _folder(runs: Path) -> Check:
    place = next((above for above in (runs, *runs.parents) if above.exists()), Path("/"))
    name = "folder for runs"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        advice = "Set EFPROF_HOME to a folder that can."
        return essential(name, is_met=False, why=f"{runs} cannot be written.", advice=advice)
    free = shutil.disk_usage(place).free
    status: Status = "no" if free < LEAST_FREE_BYTES else "careful" if free < AMPLE_FREE_BYTES else "yes"
    return Check(
        name=name,
        status=status,
        why=f"{runs} has {format_bytes(free)} free.",
        advice="" if status == "yes" else "Make room, or set EFPROF_HOME to a folder on another disk.",
        is_essential=True,
    )


def _settings(folder: Path) -> Check:
    try:
        settings = read_settings(folder)
        kept_configuration(settings.configuration)
    except EfprofError as error:
        return essential("settings", is_met=False, why=str(error), advice="Mend that file.")
    if settings.file is None:
        return Check(name="settings", status="yes", why="There is no efprof.toml, so the defaults hold.")
    return Check(name="settings", status="yes", why=f"Read from {settings.file}.")


def _git(folder: Path) -> Check:
    if shutil.which("git") is None:
        return Check(
            name="git", status="no", why="It is not installed.", advice="Install it, so that runs know their commit."
        )
    git = read_git(folder)
    if git is None:
        return Check(
            name="git",
            status="no",
            why=f"{folder} lies in no repository: runs know neither commit nor branch.",
            advice="Start training inside the repository, so that 'efprof compare' can name branches.",
        )
    return Check(name="git", status="yes", why=f"{git.root}, branch {git.branch or 'none (detached)'}.")
