"""What of the host can be recorded: Python, torch, the start-up hook; and whether a run can be kept and known again."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec

from efprof.artifacts.settings import read_settings
from efprof.model import EfprofError
from efprof.recorder.launch.launch import child_environment
from efprof.recorder.launch.machine import kept_configuration, read_git
from efprof.recorder.session.options import Options
from efprof.units import GIB, MIB, format_bytes

Status = Literal["yes", "careful", "no"]
"""`careful` works, and something about it needs a person's attention."""

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 6)

CHILD_TIMEOUT_S = 60
"""For a Python that does nothing: a cold start from a network drive takes seconds."""

_PROBE = "import sys; print(any(type(finder).__name__ == '_TorchWatcher' for finder in sys.meta_path))"

PROBE_BYTES = 8 * MIB
"""Too large for any allocator's cache."""

MIN_FREE_BYTES = 100 * MIB
"""Less than two profiler windows of a large model."""

AMPLE_FREE_BYTES = GIB
"""A run with all its windows takes some 100 MiB."""


class Check(msgspec.Struct, frozen=True):
    """Whether `name` can be recorded, or is as it should be; why; and what to do, where there is anything to do.

    Where an essential one is `no`, training cannot be recorded at all.
    """

    name: str
    status: Status
    why: str
    advice: str = ""
    is_essential: bool = False


def essential(name: str, *, is_met: bool, why: str, advice: str) -> Check:
    """A check without which training cannot be recorded at all; the advice is for where it is not met."""
    return Check(name, "yes" if is_met else "no", why, "" if is_met else advice, is_essential=True)


def can_record(checks: Sequence[Check]) -> bool:
    return not any(check.is_essential and check.status == "no" for check in checks)


def import_torch() -> ModuleType | None:
    """None where it is not installed, or cannot be loaded; `checks` then says why."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError):
        return None


def checks_of_python(torch: ModuleType | None) -> Iterator[Check]:
    yield _python()
    yield _torch(torch)
    yield _hook()


def version_of(torch: ModuleType) -> tuple[int, int]:
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


def checks_of_place(folder: Path, runs: Path) -> Iterator[Check]:
    yield _folder(runs)
    yield _settings(folder)
    yield _git(folder)


def checks_of_memory(torch: ModuleType | None) -> Iterator[Check]:
    if torch is not None:
        yield _counters(torch)
    yield _memray()


def _python() -> Check:
    least = ".".join(map(str, MIN_PYTHON))
    return essential(
        "Python",
        is_met=sys.version_info >= MIN_PYTHON,
        why=f"{platform.python_version()}, {sys.executable}.",
        advice=f"Install efprof into an environment of Python {least} or newer.",
    )


def _torch(torch: ModuleType | None) -> Check:
    if torch is None:
        why, advice = "It could not be imported.", "Install torch into the environment that efprof is in."
        try:
            importlib.import_module("torch")
        except (ImportError, OSError) as error:
            why = f"It cannot be imported: {error}."
        return essential("torch", is_met=False, why=why, advice=advice)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    build = build if torch.version.cuda or torch.version.hip else "the CPU"
    return essential(
        "torch",
        is_met=version_of(torch) >= MIN_TORCH,
        why=f"{torch.__version__}, built for {build}.",
        advice=f"Install torch {'.'.join(map(str, MIN_TORCH))} or newer.",
    )


def _hook() -> Check:
    """Really started: nothing else tells what a site's own customization does to it."""
    command, name = [sys.executable, "-c", _PROBE], "start-up hook"
    try:
        done = subprocess.run(
            command, env=child_environment(Options()), capture_output=True, text=True, timeout=CHILD_TIMEOUT_S
        )
        printed, said = done.stdout.strip(), ("\n" + done.stderr.strip()).splitlines()[-1].rstrip(".")
    except (OSError, subprocess.TimeoutExpired) as error:
        printed, said = "", str(error)
    if printed != "True":
        why = f"A child of Python started without it{f' ({said})' if said else ''}."
        advice = "Find what removes PYTHONPATH or sitecustomize here, or record in code: with efprof.record()."
        return essential(name, is_met=False, why=why, advice=advice)
    if said:
        why = f"A child of Python ran it, and said: {said}."
        return Check(name, "careful", why, "Mend the sitecustomize that says so.")
    return Check(name, "yes", "A child of Python ran it (one started with -I, -E or -S would not).")


def _folder(runs: Path) -> Check:
    place = next((above for above in (runs, *runs.parents) if above.exists()), Path("/"))
    name = "folder for runs"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        advice = "Set EFPROF_HOME to a folder that can."
        return essential(name, is_met=False, why=f"{runs} cannot be written.", advice=advice)
    free = shutil.disk_usage(place).free
    status: Status = "no" if free < MIN_FREE_BYTES else "careful" if free < AMPLE_FREE_BYTES else "yes"
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
    from efprof.recorder.loop.device import Memory

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
