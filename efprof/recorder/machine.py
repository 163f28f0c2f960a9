"""The machine, the repository and the environment a command is started in, without what nobody should keep."""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from efprof.artifacts.run_file import Git, Host
from efprof.recorder.redaction import without_secret_variables

KEPT_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|OPENBLAS|NCCL|GLOO|CUBLAS|CUDNN)_\w+|CUDA_(VISIBLE_DEVICES|LAUNCH_BLOCKING|MODULE_LOADING)"
    r"|(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO)_\w+|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|PYTHONHASHSEED"
    r"|MALLOC_\w+|LD_PRELOAD"
)
"""Environment variables that change how training runs; no other is kept."""

GIT_TIMEOUT_S = 10
"""A status that takes longer walks a repository on a slow network drive; the run does without."""


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables worth keeping; one that looks like a secret is not, whatever its name."""
    kept = {name: value for name, value in sorted(environment.items()) if KEPT_VARIABLES.fullmatch(name)}
    return without_secret_variables(kept)


def describe_host() -> Host:
    """Processor, cores this process may use, memory; the name of the machine only as a hash."""
    return Host(
        name_hash=hashlib.sha256(platform.node().encode()).hexdigest()[:12],
        cpu=_cpu_model(),
        num_cpus=_usable_cpus(),
        total_bytes=_total_memory(),
    )


def read_git(folder: Path) -> Git | None:
    """The repository `folder` lies in; None where it lies in none, or git is not installed."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    commit = _git(folder, "rev-parse", "-q", "--verify", "HEAD")
    return Git(root=root, branch=branch, commit=commit, is_dirty=bool(_git(folder, "status", "--porcelain")))


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
