"""The machine, the repository and the settings a command is started in, without secrets."""

import hashlib
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from efprof.artifacts.processors import num_processors
from efprof.artifacts.run_file import Git, Host
from efprof.artifacts.settings import read_configuration
from efprof.model import EfprofError
from efprof.recorder.session.options import Options
from efprof.recorder.session.redaction import (
    without_secret_values,
    without_secret_variables,
)

KEPT_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|OPENBLAS|NCCL|GLOO|CUBLAS|CUDNN)_\w+|CUDA_(VISIBLE_DEVICES|LAUNCH_BLOCKING|MODULE_LOADING)"
    r"|(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO)_\w+|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|PYTHONHASHSEED"
    r"|MALLOC_\w+|LD_PRELOAD"
)
"""Environment variables that change how training runs; no other is kept."""

GIT_TIMEOUT_S = 10
"""A status that takes longer walks a repository on a slow network drive; the run does without."""

DRIVER_FOLDER = Path("/proc/driver/nvidia")
"""Where the kernel module of NVIDIA's driver says what it is and what it drives."""


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables worth keeping; one that looks like a secret is not, whatever its name."""
    kept = {name: value for name, value in sorted(environment.items()) if KEPT_VARIABLES.fullmatch(name)}
    return without_secret_variables(kept)


def kept_configuration(files: Sequence[Path]) -> dict[str, str]:
    """The values of the user's configuration files, by key; raises EfprofError for a file that cannot be read."""
    return without_secret_values(read_configuration(files))


def refuse_missing_memray(options: Options) -> None:
    """Raise EfprofError, before anything is started, where host memory is wanted and memray not installed."""
    if options.host_memory and importlib.util.find_spec("memray") is None:
        raise EfprofError("--host-memory needs memray, which is not installed: run 'pip install memray'.")


def describe_host() -> Host:
    """Processor, cores this process may use, memory; the name of the machine only as a hash."""
    return Host(
        name_hash=hashlib.sha256(platform.node().encode()).hexdigest()[:12],
        cpu=_cpu_model(),
        num_cpus=num_processors(),
        total_bytes=_total_memory(),
    )


def driver_version() -> str | None:
    """Of the NVIDIA driver; None where there is none, or it is not Linux's."""
    try:
        text = (DRIVER_FOLDER / "version").read_text()
    except OSError:
        return None
    found = re.search(r"NVRM version:.*?(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else None


def read_git(folder: Path) -> Git | None:
    """The repository `folder` lies in; None where it lies in none, or git is not installed."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    commit = _git(folder, "rev-parse", "-q", "--verify", "HEAD")
    changes = (_git(folder, "status", "--porcelain") or "").splitlines()
    return Git(
        root=root,
        branch=branch,
        commit=commit,
        is_dirty=bool(changes),
        num_untracked=sum(change.startswith("??") for change in changes),
    )


def _git(folder: Path, *arguments: str) -> str | None:
    """What it prints; None where it fails, takes too long, or is not installed."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
